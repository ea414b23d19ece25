//! Mistakes with `recommend`.

use super::check;

const LOG: &str =
    "10.0.0.1 - - [14/Nov/2023:22:14:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"a\"\n";

#[test]
fn recommend_mistakes_are_named() {
    for (line, input, expected) in [
        ("", "", "missing FILE: expected a trace, an access log, `-` or --traffic"),
        ("/nowhere.log", "", "cannot open /nowhere.log: no such file or directory"),
        ("-", "", "the file is empty: expected a trace or an access log\n"),
        ("-", "t_us,key,cost\n", "invalid FILE: expected at least one request\n"),
        ("-", "t_us,key,cost,op\n0,a,1,peek\n", "invalid FILE: expected at least one request\n"),
        ("-", "t_us,key,cost\n5,a,1\n4,a,1\n", "line 3: invalid t_us `4`: expected at least `5`"),
        (
            "-",
            "{\"ts\":1700000040.25,\"tenant\":\"x\"}\n",
            "invalid log: no line has a client under one of its usual names; use --key for another field, as \
             `--key '{field}'`\n",
        ),
        (
            "-",
            "hello\n",
            "unknown format: expected a trace with the header `t_us,key,cost`, or an access log; use --log",
        ),
        (
            "-",
            "BZh91AY&SY",
            "invalid FILE: it is compressed by bzip2; use `bzcat FILE | sluicegate recommend -`\n",
        ),
        ("- --key {host}", LOG, "invalid --key: unknown field `host`: expected one of ip, user, "),
        ("- --key ip", LOG, "invalid --key `ip`: expected a field in braces, such as `{ip}`"),
        (
            "- --policy gcra:60/1m",
            LOG,
            "unknown option `--policy`: `sluicegate simulate` has it; see `sluicegate recommend --help`\n",
        ),
        ("- --seed 7", LOG, "missing --traffic: --seed needs it"),
        (
            "- --plot chart.png",
            LOG,
            "invalid --plot `chart.png`: expected a file that ends in `.svg`",
        ),
    ] {
        check(&format!("recommend {line}"), input, expected);
    }
}
