//! Runs seeds with a planted bug.

use std::{
    fs,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// Time limit for the seeds of a bug, and for shrinking what they find.
pub(super) const MUTANT_TIMEOUT: Duration = Duration::from_mins(10);

/// What a run of at most `limit` writes to the file `output`; `None` if it violates nothing.
pub(super) fn output_of(
    mut run: Command,
    output: &Path,
    limit: Duration,
) -> Result<Option<String>> {
    let file = fs::File::create(output)?;
    let mut child = run.stdout(file).stderr(Stdio::null()).spawn()?;
    let Some(status) = wait_for(&mut child, limit)? else {
        child.kill()?;
        child.wait()?;
        bail!("it was still running after {} minutes", limit.as_secs() / 60);
    };
    if status.success() {
        return Ok(None);
    }
    Ok(Some(fs::read_to_string(output)?))
}

/// How a program ended; `None` if it has not within `limit`.
#[expect(clippy::disallowed_methods, reason = "a program that a bug keeps from ending is stopped")]
fn wait_for(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let begin = Instant::now();
    while begin.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(None)
}
