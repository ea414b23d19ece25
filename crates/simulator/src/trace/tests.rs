use sluicegate_core::Operation;

use super::*;
use crate::{event::Event, limits::MAX_LINE};

/// All events as text, then the error if there is one.
fn read(trace: impl AsRef<[u8]>) -> String {
    let mut out = String::new();
    let mut reader = match TraceReader::new(trace.as_ref()) {
        Ok(reader) => reader,
        Err(error) => return error.to_string(),
    };
    loop {
        let batch = match reader.next_batch() {
            Ok(batch) => batch,
            Err(error) => return out + &error.to_string(),
        };
        if batch.is_empty() {
            return out;
        }
        for event in batch.events() {
            let Event { line, time, key, policy, .. } = event;
            let operation = match event.operation(&"gcra:1/1s".parse().unwrap()) {
                Operation::Hold { id, cost, ttl } => {
                    format!("Hold({}, {cost}, {ttl:?})", id.escape_ascii())
                }
                Operation::Settle { id, used } => {
                    format!("Settle({}, {used:?})", id.escape_ascii())
                }
                Operation::Renew { id, ttl } => format!("Renew({}, {ttl:?})", id.escape_ascii()),
                operation => format!("{operation:?}"),
            };
            let (key, policy) = (key.escape_ascii(), policy.escape_ascii());
            out += &format!("{line}: {time} {key} {policy} {operation}\n");
        }
    }
}

#[test]
fn trace_columns_are_found_by_name() {
    assert_eq!(
        read("op,cost,policy,key,t_us\n,3,,a,5\nrefund,2,gcra:1/1s,b,6\nreset,0,,,6\n"),
        "2: 5us a  Take(3)\n3: 6us b gcra:1/1s Refund(2)\n4: 6us   Reset\n"
    );
    assert_eq!(
        read("key,t_us,cost,ip"),
        "line 1: unknown column `ip`: expected t_us, key, cost, policy, op, id or ttl_us"
    );
    assert_eq!(
        read("t_us,key,cost,policy,op,id,ttl_us,x"),
        "line 1: unknown column `x`: expected t_us, key, cost, policy, op, id or ttl_us"
    );
    assert_eq!(read("t_us,key,t_us"), "line 1: duplicate column `t_us`: expected it once");
    assert_eq!(read("t_us,key\n1,a"), "line 1: missing column `cost`");
    assert_eq!(read(""), "line 1: missing header: expected `t_us,key,cost`");
}

#[test]
fn trace_hold_columns_are_read() {
    assert_eq!(
        read(
            "t_us,key,cost,op,id,ttl_us\n1,a,2,hold,x,1000\n1,a,2,hold,\"x,\",\n2,a,,settle,x,\n\
             2,a,0,settle,y,\n3,a,,renew,z,5000000\n3,a,9,renew,z,\n4,a,1,,,\n"
        ),
        "2: 1us a  Hold(x, 2, Some(1ms))\n3: 1us a  Hold(x,, 2, None)\n4: 2us a  Settle(x, None)\n\
         5: 2us a  Settle(y, Some(0))\n6: 3us a  Renew(z, Some(5s))\n7: 3us a  Renew(z, None)\n\
         8: 4us a  Take(1)\n"
    );
    // Without the columns, the id is empty: the core rejects it.
    assert_eq!(read("t_us,key,cost,op\n1,a,2,hold\n"), "2: 1us a  Hold(, 2, None)\n");
}

#[test]
fn trace_quotes_line_ends_and_marks_are_those_of_rfc_4180() {
    assert_eq!(
        read("\u{feff}t_us,\"key\",cost\r\n1,\"a,\"\"b\"\"\",1\r\n\r\n2,\"x\r\ny\",1\n3,c,1"),
        "2: 1us a,\\\"b\\\"  Take(1)\n4: 2us x\\r\\ny  Take(1)\n6: 3us c  Take(1)\n"
    );
    assert_eq!(read(b"t_us,key,cost\n1,\xff\0\r,1\n"), "2: 1us \\xff\\x00\\r  Take(1)\n");
}

#[test]
fn trace_broken_line_error_has_number_and_fault() {
    for (lines, actual) in [
        ("1,a,x", "line 2: invalid cost `x`: expected a whole number from 0 to 4294967295"),
        (
            "1,a,4294967296",
            "line 2: invalid cost `4294967296`: expected a whole number from 0 to 4294967295",
        ),
        ("1,a,", "line 2: invalid cost ``: expected a whole number from 0 to 4294967295"),
        ("-1,a,1", "line 2: invalid t_us `-1`: expected a whole number from 0 to 4503599627370496"),
        (
            "4503599627370497,a,1",
            "line 2: invalid t_us `4503599627370497`: expected a whole number from 0 to 4503599627370496",
        ),
        ("1,a", "line 2: expected 3 fields as in the header, not 2"),
        ("1", "line 2: expected 3 fields as in the header, not 1"),
        ("1,a,1,,,,,", "line 2: expected 3 fields as in the header, not 8"),
        ("\n\n1,\"a", "line 4: missing closing quote"),
        (
            "1,a\"b,1",
            "line 2: invalid field 2: expected quotes around the whole field, and quotes in it doubled",
        ),
        (
            "1,\"a\"b,1",
            "line 2: invalid field 2: expected quotes around the whole field, and quotes in it doubled",
        ),
    ] {
        assert_eq!(read(format!("t_us,key,cost\n{lines}")), actual);
    }
    assert_eq!(
        read("t_us,key,cost\n7,\"a\n\",1\n6,a,1\n"),
        "2: 7us a\\n  Take(1)\nline 4: invalid t_us `6`: expected at least `7`, the time of the event before"
    );
    assert_eq!(
        read("t_us,key,cost,op\n7,a,1,wait"),
        "line 2: unknown op `wait`: expected take, peek, charge, refund, reset, hold, settle or renew"
    );
    for (row, fault) in [
        ("7,a,,hold,x,", "invalid cost ``: expected a whole number from 0 to 4294967295"),
        ("7,a,-1,settle,x,", "invalid cost `-1`: expected a whole number from 0 to 4294967295"),
        ("7,a,x,renew,x,", "invalid cost `x`: expected a whole number from 0 to 4294967295"),
        (
            "7,a,1,hold,x,1s",
            "invalid ttl_us `1s`: expected a whole number of microseconds, or nothing",
        ),
    ] {
        let actual = read(format!("t_us,key,cost,op,id,ttl_us\n{row}"));
        assert_eq!(actual, format!("line 2: {fault}"));
    }
}

#[test]
fn trace_greatest_times_and_costs_are_read() {
    assert_eq!(
        read("t_us,key,cost\n0,,0\n2251799813685248,,4294967295\n4503599627370496,a,1\n"),
        "2: 0us   Take(0)\n3: 2251799813685248us   Take(4294967295)\n\
         4: 4503599627370496us a  Take(1)\n"
    );
}

#[test]
fn trace_line_over_1_mib_is_an_error() {
    for (quote, end) in [("", "\n"), ("\"", "\n"), ("", "")] {
        let key = "k".repeat(MAX_LINE - "1,,1".len() - 2 * quote.len());
        let longest = format!("t_us,key,cost\n1,{quote}{key}{quote},1{end}");
        assert!(read(&longest).starts_with("2: 1us kkk"));
        let longer = format!("t_us,key,cost\n1,{quote}{key}k{quote},1{end}");
        assert_eq!(read(longer), "line 2: expected up to 1048576 bytes");
    }
    let endless = std::io::Read::chain(&b"t_us,key,cost\n1,\""[..], std::io::repeat(b'\n'));
    let mut reader = TraceReader::new(endless).unwrap();
    let error = reader.next_batch().unwrap_err();
    assert_eq!(error.to_string(), "line 2: expected up to 1048576 bytes");
    assert!(reader.next_batch().unwrap().is_empty());
}

#[test]
fn trace_after_invalid_value_next_line_is_read() {
    let mut reader = TraceReader::new(&b"t_us,key,cost\nx,a,1\n5,a,1\n"[..]).unwrap();
    assert!(reader.next_batch().is_err());
    let lines: Vec<_> = reader.next_batch().unwrap().events().map(|event| event.line).collect();
    assert_eq!(lines, [3]);
}
