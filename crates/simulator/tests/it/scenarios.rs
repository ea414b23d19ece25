//! Every expectation in `scenarios/expected.json`.

use std::{collections::BTreeMap, fs::File, path::Path, time::Duration};

use serde_json::{Map, Value, json};
use sluicegate_simulator::{Report, Simulation, TraceReader};

const SPANS: [u64; 5] = [1, 2, 3, 10, 60];

#[test]
fn scenario_produces_the_expected_rows() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let expected = File::open(folder.join("expected.json")).unwrap();
    let scenarios: BTreeMap<String, Value> = serde_json::from_reader(expected).unwrap();
    let mut checked = 0;
    for (name, scenario) in &scenarios {
        for (policy, expected) in scenario["expect"].as_object().unwrap() {
            let mut expected = expected.clone();
            expected.as_object_mut().unwrap().remove("note");
            let found = run(&folder.join(format!("{name}.csv")), policy);
            assert_eq!(found, expected, "{name}: {policy}");
            checked += 1;
        }
    }
    assert!(checked >= 26, "{checked} expectations");
}

fn run(trace: &Path, policy: &str) -> Value {
    let mut reader = TraceReader::new(File::open(trace).unwrap()).unwrap();
    let mut simulation = Simulation::new(Some(policy.parse().unwrap()));
    let mut report = Report::new(&SPANS.map(Duration::from_secs));
    add_all(&mut report, &mut reader, &mut simulation);
    let most = report.peak_admitted();
    let most: Map<_, _> =
        most.map(|most| (format!("{}s", most.span.as_secs()), json!(most.count))).collect();
    let micros = |delay: Duration| u64::try_from(delay.as_micros()).unwrap();
    json!({
        "requests": report.totals().requests,
        "allowed": report.totals().allowed,
        "denied": report.totals().denied(),
        "most_admitted_in": most,
        "last_delay_us": report.totals().last_delay.map(micros),
        "longest_delay_us": micros(report.totals().longest_delay),
    })
}

fn add_all(report: &mut Report, reader: &mut TraceReader<File>, simulation: &mut Simulation) {
    loop {
        let batch = reader.next_batch().unwrap();
        if batch.is_empty() {
            break;
        }
        for event in batch.events() {
            report.add(&event, &simulation.decide(&event).unwrap());
        }
    }
    report.finish();
}

#[test]
fn scenario_queue_paces_sent_requests() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut reader = TraceReader::new(File::open(folder.join("queue-200ms.csv")).unwrap()).unwrap();
    let policy = "leaky-queue:5/1s:capacity=20".parse().unwrap();
    let mut simulation = Simulation::new(Some(policy));
    let mut report = Report::new(&SPANS.map(Duration::from_secs));
    add_all(&mut report, &mut reader, &mut simulation);
    let sent: Vec<u64> = report.peak_sent().map(|most| most.count).collect();
    assert_eq!(sent, [5, 10, 15, 20, 20]);
}
