//! `recommend`: which keys of a log candidate policies deny, and the policy to use.

mod picture;
mod text;

use std::{env, io::Write, path::Path};

use anyhow::ensure;
use clap::{ArgMatches, Args};
use sluicegate_simulator::{Recommendation, Survey};

use crate::{
    drawing::{Drawing, Plot, terminal, write_file},
    input::{Durations, Input, InputOptions, Reading},
    output::output,
};

#[derive(Args, Debug)]
pub(crate) struct Recommend {
    #[command(flatten)]
    pub(crate) drawing: Drawing,
    #[command(flatten)]
    pub(crate) input: InputOptions,
}

impl Recommend {
    /// Records which options were given.
    pub(crate) fn note_given(&mut self, matches: &ArgMatches) {
        self.input.note_given(matches);
    }
}

pub(crate) fn recommend(options: &Recommend) -> anyhow::Result<()> {
    let (trace, plot) = options.drawing.files(options.input.trace.as_ref())?;
    options.input.check()?;
    options.input.warn_of_late_traffic();
    let recommendation = read(&options.input, trace.as_deref())?;
    let mut out = output();
    let terminal = terminal();
    text::print(&recommendation, terminal.columns, &mut out)?;
    let figure = || picture::figure(&recommendation);
    match plot {
        Some(Plot::Terminal) => write!(out, "\n{}", terminal.draw(&figure()))?,
        Some(Plot::File(path)) => write_file(&path, &sluicegate_plot::svg(&figure()))?,
        None => {}
    }
    text::print_named(&recommendation, terminal.columns, env::args_os().skip(2), &mut out)
}

/// Reads the input once.
fn read(options: &InputOptions, trace: Option<&Path>) -> anyhow::Result<Recommendation> {
    let reading = Reading {
        options,
        command: "recommend",
        lacks_policy: false,
        durations: Durations::default(),
    };
    let mut source = Input::new(options, trace)?.open(reading)?;
    let mut survey = Survey::new();
    loop {
        let batch = source.next_batch()?;
        if batch.is_empty() {
            break;
        }
        batch.events().for_each(|event| survey.add(&event));
    }
    source.finish(reading)?;
    let recommendation = Recommendation::new(&survey);
    ensure!(recommendation.requests > 0, "invalid FILE: expected at least one request");
    Ok(recommendation)
}
