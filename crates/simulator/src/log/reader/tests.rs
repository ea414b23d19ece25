use super::*;

fn events(format: &str, key: &str, log: &[u8]) -> (Vec<String>, Broken, LateLines) {
    let (format, key) = (format.parse().unwrap(), key.parse().unwrap());
    let disorder = Duration::from_secs(5);
    let mut reader =
        LogReader::new(log, &format, &key, None, DurationField::Ignored, disorder).unwrap();
    let mut actual = Vec::new();
    loop {
        let batch = reader.next_batch().unwrap();
        if batch.is_empty() {
            return (actual, reader.broken().clone(), reader.late());
        }
        actual.extend(batch.events().map(|event| {
            format!("{} {} {}", event.line, event.time, String::from_utf8_lossy(event.key))
        }));
    }
}

fn line(ip: &str, second: u32, path: &str) -> String {
    let (minute, second) = (second / 60, second % 60);
    format!(
        "{ip} - - [14/Nov/2023:22:{minute:02}:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 5 \
         \"-\" \"x\"\n"
    )
}

#[test]
fn lines_become_events() {
    let log = line("10.0.0.1", 0, "/a?b=c") + "\r\n\n" + &line("::1", 1, "/b\\x22");
    let (actual, broken, late) = events("combined", "{ip}:{path}", log.as_bytes());
    assert_eq!(actual, ["1 1699999200000000us 10.0.0.1:/a", "4 1699999201000000us ::/64:/b\""]);
    assert_eq!((broken.count, late.count), (0, 0));
}

#[test]
fn objects_become_events() {
    let log = r#"{"start_time":"2023-11-14T22:00:00.25Z","downstream_remote_address":"10.0.0.1:5","path":"/a?b"}
{"ts":1699999201.5,"request":{"remote_ip":"::1","uri":"/b"},"user_id":null}
{"ts":"x","ip":"10.0.0.2"}
{"ts":1699999202,"user_id":7,"ip":"10.0.0.2"}
nothing
{"ip":"10.0.0.2"}
"#;
    let (actual, broken, _) = events("json", "{ip} {path} {user}", log.as_bytes());
    assert_eq!(
        actual,
        [
            "1 1699999200250000us 10.0.0.1 /a -",
            "2 1699999201500000us ::/64 /b -",
            "4 1699999202000000us 10.0.0.2 - 7"
        ]
    );
    let first: Vec<_> =
        broken.first.iter().map(|(line, fault)| format!("{line}: {fault}")).collect();
    assert_eq!(broken.count, 3);
    assert_eq!(
        first[0],
        "3: invalid time `x`: expected a time from 1970 to 2112, such as `10/Oct/2000:13:55:36 -0700`"
    );
    assert_eq!(first[1], "5: expected a JSON object");
    assert_eq!(first[2], "6: missing time");
}

#[test]
fn reader_time_in_two_fields_is_the_finer_one() {
    let whole = "14/Nov/2023:22:00:00 +0000";
    let json = |fields: &str| format!("{{\"ip\":\"a\",{fields}}}");
    for (format, line, micros) in [
        ("$remote_addr [$time_local] $msec", format!("a [{whole}] 1699999200.250"), 250_000),
        ("$remote_addr $msec [$time_local]", format!("a 1699999200.250 [{whole}]"), 250_000),
        ("%h %t %{usec}t", format!("a [{whole}] 1699999200250001"), 250_001),
        ("%h %t %{begin:msec}t", format!("a [{whole}] 1699999200250"), 250_000),
        // A part of a time, and the end of a request that has its start too.
        ("%h %t %{msec_frac}t", format!("a [{whole}] 250"), 0),
        ("%h %t %{end:msec}t", format!("a [{whole}] 1699999209000"), 0),
        ("%h %{sec}t", "a 1699999200".to_owned(), 0),
        ("json", json(&format!("\"time_local\":\"{whole}\",\"msec\":\"1699999200.250\"")), 250_000),
        ("json", json("\"time\":\"2023-11-14T22:00:00Z\",\"msec\":1699999200.250"), 250_000),
        // A duration.
        ("json", json("\"time\":\"2023-11-14T22:00:00Z\",\"msec\":12.5"), 0),
    ] {
        let (actual, _, _) = events(format, "{ip}", line.as_bytes());
        assert_eq!(actual, [format!("1 {}us a", 1_699_999_200_000_000_u64 + micros)], "{format}");
    }
}

#[test]
fn broken_lines_are_counted_and_the_first_is_reported() {
    let mut log = String::new();
    for second in 0..20 {
        log += &line("a", second, "/");
        log += "what is this\n";
    }
    let (actual, broken, _) = events("combined", "{ip}", log.as_bytes());
    assert_eq!((actual.len(), broken.count, broken.first.len()), (20, 20, 5));
    assert_eq!(broken.first[0].0, 2);
    assert_eq!(broken.first[0].1.to_string(), "missing ` [` after remote_user");
}

#[test]
fn lines_near_each_other_are_sorted() {
    let seconds = [10, 12, 11, 11, 30, 27, 40];
    let log: String = seconds.iter().map(|second| line("a", *second, "/")).collect();
    let (actual, _, late) = events("combined", "{ip}", log.as_bytes());
    let lines: Vec<_> = actual.iter().map(|event| event.split(' ').next().unwrap()).collect();
    assert_eq!(lines, ["1", "3", "4", "2", "6", "5", "7"]);
    assert_eq!(late.count, 0);
}

#[test]
fn reader_late_line_gets_time_reached() {
    // Enough lines that the first ones are returned before the late one is read.
    let mut log = String::new();
    for index in 0..40_000 {
        log += &line("a", index / 100, "/");
    }
    log += &line("late", 0, "/");
    log += &line("last", 500, "/");
    let (actual, broken, late) = events("combined", "{ip}", log.as_bytes());
    assert_eq!((actual.len(), broken.count, late.count), (40_002, 0, 1));
    assert!(late.most > Duration::from_secs(100) && late.most < Duration::from_secs(400));
    let times: Vec<u64> =
        actual.iter().map(|it| it[..].split([' ', 'u']).nth(1).unwrap().parse().unwrap()).collect();
    assert!(times.is_sorted());
}

#[test]
fn reader_line_in_far_future_affects_no_other() {
    let mut log = line("a", 0, "/").replace("2023", "2099");
    log += &line("b", 1, "/");
    log += &line("c", 2, "/");
    let (actual, _, late) = events("combined", "{ip}", log.as_bytes());
    assert!(actual[0].ends_with(" b") && actual[1].ends_with(" c") && actual[2].ends_with(" a"));
    assert_eq!(late.count, 0);
}

#[test]
fn reader_line_in_far_future_before_many_blocks_keeps_them_sorted() {
    let mut log = line("far", 0, "/").replace("2023", "2099");
    for index in 0..40_000 {
        log += &line("a", index / 100 + 2 * (index % 2), "/");
    }
    let (actual, _, late) = events("combined", "{ip}", log.as_bytes());
    assert_eq!((actual.len(), late.count), (40_001, 0));
    assert!(actual[40_000].ends_with(" far"), "{}", actual[40_000]);
}

#[test]
fn reader_request_that_ends_in_far_future_keeps_others_sorted() {
    let mut log = "far 4099999300.000 0.001\n".to_owned();
    let client = "a".repeat(60);
    for index in 0..40_000 {
        log += &format!("{client} {}.000 0.001\n", 1_699_999_300 + index / 100 + 2 * (index % 2));
    }
    let (actual, _, late) = starts_and_ends("$remote_addr $msec $request_time", &log);
    assert_eq!((actual.len(), late.count), (80_002, 0));
    assert!(actual[80_001].ends_with(" far"), "{}", actual[80_001]);
}

#[test]
fn reader_endless_line_is_skipped() {
    for length in [MAX_LINE + 1, BLOCK - 1, BLOCK, 3 * BLOCK] {
        let mut log = "x".repeat(length).into_bytes();
        log.push(b'\n');
        log.extend(line("a", 0, "/").bytes());
        let (actual, broken, _) = events("combined", "{ip}", &log);
        assert_eq!((actual.len(), broken.count), (1, 1), "{length}");
        assert!(actual[0].starts_with("2 "), "{actual:?}");
        assert_eq!(broken.first, [(1, LogFault::TooLong)]);
    }
}

#[test]
fn reader_missing_field_is_an_error() {
    let (format, key) = ("common".parse().unwrap(), "{host}".parse().unwrap());
    let open =
        |key, duration| LogReader::new(&b""[..], &format, key, None, duration, Duration::ZERO);
    let error = open(&key, DurationField::Ignored).unwrap_err();
    let expected =
        "unknown field `host`: expected one of ip, user, time, method, path, url, remote_addr, ";
    assert!(error.to_string().starts_with(expected), "{error}");
    let key = "{ip}".parse().unwrap();
    for (field, name) in
        [(DurationField::Detected, "duration"), (DurationField::Named("took_ms"), "took_ms")]
    {
        let error = open(&key, field).unwrap_err().to_string();
        assert!(error.starts_with(&format!("unknown field `{name}`: expected one of ")), "{error}");
    }
}

/// Line, kind, time after the first event in milliseconds, key.
fn starts_and_ends(format: &str, log: &str) -> (Vec<String>, Broken, LateLines) {
    let (format, key) = (format.parse().unwrap(), "{ip}".parse().unwrap());
    let disorder = Duration::from_secs(35);
    let mut reader =
        LogReader::new(log.as_bytes(), &format, &key, None, DurationField::Detected, disorder)
            .unwrap();
    let mut actual = Vec::new();
    loop {
        let batch = reader.next_batch().unwrap();
        if batch.is_empty() {
            return (actual, reader.broken().clone(), reader.late());
        }
        actual.extend(batch.events().map(|event| {
            let (millis, key) = (event.time.as_micros() / 1000, event.key.escape_ascii());
            assert_eq!(event.id, event.line.to_le_bytes());
            assert_eq!(event.cost, (event.kind == Kind::Start).then_some(1));
            format!("{} {} {} {key}", event.line, event.kind, millis - 1_699_999_200_000)
        }));
    }
}

#[test]
fn reader_line_with_duration_is_a_start_and_an_end() {
    // nginx has the time of the end.
    let nginx = "10.0.0.1 1699999210.000 7.500\n10.0.0.2 1699999210.250 0.250\n10.0.0.3 1699999211 0\n\
                 10.0.0.4 1699999211 -\n";
    let expected = [
        "1 start 2500 10.0.0.1",
        "1 end 10000 10.0.0.1",
        "2 start 10000 10.0.0.2",
        "2 end 10250 10.0.0.2",
        "3 start 11000 10.0.0.3",
        "3 end 11000 10.0.0.3",
    ];
    let (actual, broken, _) = starts_and_ends("$remote_addr $msec $request_time", nginx);
    assert_eq!(actual, expected);
    assert_eq!(
        broken.first[0].1.to_string(),
        "invalid duration `-`: expected a number up to 366 days, such as `0.250`, or one with a unit (h, m, s, ms, us \
         or ns), such as `12ms`"
    );
    // Envoy has the start and milliseconds, Caddy the end and seconds.
    let json = r#"{"start_time":"2023-11-14T22:00:02.5Z","duration":7500,"ip":"10.0.0.1"}
{"ts":1699999210.25,"duration":0.25,"ip":"10.0.0.2"}
{"time":"2023-11-14T22:00:11Z","request_time":"0.000","ip":"10.0.0.3"}
{"time":"2023-11-14T22:00:11Z","ip":"10.0.0.4"}
"#;
    let (actual, broken, _) = starts_and_ends("json", json);
    assert_eq!(actual, expected);
    assert_eq!(broken.first, [(4, LogFault::NoDuration)]);
    // Apache has the start and microseconds.
    let apache = "10.0.0.1 [14/Nov/2023:22:00:02 +0000] 8000000\n10.0.0.2 [14/Nov/2023:22:00:10 +0000] 250000\n";
    let (actual, _, _) = starts_and_ends("%h %t %D", apache);
    assert_eq!(
        actual,
        [
            "1 start 2000 10.0.0.1",
            "1 end 10000 10.0.0.1",
            "2 start 10000 10.0.0.2",
            "2 end 10250 10.0.0.2"
        ]
    );
}

#[test]
fn reader_late_line_with_duration_is_counted_once() {
    let mut log = String::new();
    let client = "a".repeat(60);
    for index in 0..40_000 {
        log += &format!("{client} {}.000 0.001\n", 1_699_999_300 + index / 100);
    }
    log += "late 1699999300.000 0.001\n";
    let (actual, _, late) = starts_and_ends("$remote_addr $msec $request_time", &log);
    assert_eq!((actual.len(), late.count), (80_002, 1));
}

#[test]
fn reader_long_request_begins_before_the_lines_above_it() {
    let mut log = String::new();
    for millis in (0..200_000).step_by(2) {
        log += &format!("a {}.{:03} 0.001\n", 1_699_999_300 + millis / 1000, millis % 1000);
    }
    log += "long 1699999500.000 30.000\n";
    let (actual, _, late) = starts_and_ends("$remote_addr $msec $request_time", &log);
    assert_eq!((actual.len(), late.count), (200_002, 0));
    let start = actual.iter().position(|it| it == "100001 start 270000 long").unwrap();
    assert!(
        actual[start - 1].contains(" 2700") || actual[start - 1].contains(" 2699"),
        "{}",
        actual[start - 1]
    );
    assert_eq!(actual[actual.len() - 1], "100001 end 300000 long");
}
