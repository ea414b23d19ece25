//! The trace reader beside the `csv` crate: the same fields from any table.

use proptest::prelude::*;
use sluicegate_simulator::{Kind, TraceError, TraceReader};

/// Bytes of which keys are made: those that CSV gives a meaning to, and others.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        4 => b'a'..=b'z',
        1 => prop::sample::select(&b",\"\n\r \0\xff\xc3"[..]),
    ]
}

#[derive(Clone, Debug)]
struct Row {
    step: u64,
    key: Vec<u8>,
    cost: u32,
    policy: &'static str,
}

fn row() -> impl Strategy<Value = Row> {
    let key = proptest::collection::vec(byte(), 0..30);
    let step = prop_oneof![Just(0), 0..10_000_u64, Just(1 << 40)];
    let cost = prop_oneof![0..10_u32, any::<u32>()];
    let policy = prop::sample::select(vec!["", "gcra:1/1s", "gcra:1/1s,gcra:2/1s"]);
    (step, key, cost, policy).prop_map(|(step, key, cost, policy)| Row { step, key, cost, policy })
}

proptest! {
    #[test]
    fn trace_any_table_of_the_csv_crate_reads_back(
        rows in proptest::collection::vec(row(), 0..40),
        crlf: bool,
        always_quoted: bool,
        chunk in 1..300_usize,
    ) {
        let terminator = if crlf { csv::Terminator::CRLF } else { csv::Terminator::Any(b'\n') };
        let style = if always_quoted { csv::QuoteStyle::Always } else { csv::QuoteStyle::Necessary };
        let mut writer =
            csv::WriterBuilder::new().terminator(terminator).quote_style(style).from_writer(vec![]);
        writer.write_record(["policy", "cost", "t_us", "key"]).unwrap();
        let mut time = 0;
        for row in &rows {
            time += row.step;
            let (cost, t_us) = (row.cost.to_string(), time.to_string());
            let fields: [&[u8]; 4] =
                [row.policy.as_bytes(), cost.as_bytes(), t_us.as_bytes(), &row.key];
            writer.write_record(fields).unwrap();
        }
        let table = writer.into_inner().unwrap();

        let mut reader = TraceReader::new(Cut { rest: &table, chunk }).unwrap();
        let mut time = 0;
        let mut expected = rows.iter();
        loop {
            let batch = reader.next_batch().unwrap();
            if batch.is_empty() {
                break;
            }
            for event in batch.events() {
                let row = expected.next().expect("no more than were written");
                time += row.step;
                prop_assert_eq!(event.time.as_micros(), time);
                prop_assert_eq!(event.key, &row.key);
                prop_assert_eq!((event.kind, event.cost), (Kind::Take, Some(row.cost)));
                prop_assert_eq!(event.policy, row.policy.as_bytes());
            }
        }
        prop_assert!(expected.next().is_none());
    }

    #[test]
    fn simple_lines_among_others_read_as_csv_crate(
        rows in proptest::collection::vec(row(), 0..60),
        plain in proptest::collection::vec("[a-z0-9:/.-]{0,40}", 60),
        chunk in 1..3000_usize,
    ) {
        let mut writer = csv::Writer::from_writer(vec![]);
        writer.write_record(["t_us", "key", "cost"]).unwrap();
        let (mut time, mut expected) = (1_700_000_000_000_000, Vec::new());
        for (row, plain) in rows.iter().zip(&plain) {
            // One key in three, and some costs, are not in the simple form.
            let key = if row.step % 3 == 0 { &row.key } else { plain.as_bytes() };
            let cost = if row.cost > 9 { row.cost / (1 << 25) } else { row.cost };
            time += row.step % 1_000_000;
            let (t_us, cost_text) = (time.to_string(), cost.to_string());
            writer.write_record([t_us.as_bytes(), key, cost_text.as_bytes()]).unwrap();
            expected.push((time, key.to_vec(), cost));
        }
        let table = writer.into_inner().unwrap();
        for chunk in [chunk, usize::MAX] {
            let mut reader = TraceReader::new(Cut { rest: &table, chunk }).unwrap();
            let mut found = Vec::new();
            loop {
                let batch = reader.next_batch().unwrap();
                if batch.is_empty() {
                    break;
                }
                found.extend(batch.events().map(|event| {
                    (event.time.as_micros(), event.key.to_vec(), event.cost.unwrap())
                }));
            }
            prop_assert_eq!(&found, &expected);
        }
    }

    #[test]
    fn trace_any_input_reads_as_csv_crate(
        body in proptest::collection::vec(
            prop::sample::select(vec!["1", "23", ",", ",", "a", "\"", "\"\"", "\n", "\r\n"]), 0..60,
        ),
    ) {
        let table = format!("t_us,key,cost\n{}", body.concat());
        let mut ours = TraceReader::new(table.as_bytes()).unwrap();
        let mut theirs = csv::ReaderBuilder::new().flexible(true).from_reader(table.as_bytes());
        let mut theirs = theirs.byte_records().map(Result::unwrap);
        loop {
            let batch = match ours.next_batch() {
                Ok(batch) => batch,
                Err(TraceError::Line { .. }) => break,
                Err(error) => panic!("{error}"),
            };
            if batch.is_empty() {
                prop_assert!(theirs.next().is_none());
                break;
            }
            for event in batch.events() {
                let (time, cost) = (event.time.as_micros(), event.cost.unwrap());
                let record = theirs.next().expect("no less than we read");
                let number = |field| std::str::from_utf8(field).unwrap().parse::<u64>();
                prop_assert_eq!(number(&record[0]), Ok(time));
                prop_assert_eq!(&record[1], event.key);
                prop_assert_eq!(number(&record[2]), Ok(u64::from(cost)));
                prop_assert_eq!(record.len(), 3);
            }
        }
    }
}

/// Gives a few bytes at a time.
struct Cut<'a> {
    rest: &'a [u8],
    chunk: usize,
}

impl std::io::Read for Cut<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = self.chunk.min(buffer.len());
        std::io::Read::read(&mut self.rest, &mut buffer[..length])
    }
}
