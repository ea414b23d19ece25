//! The arithmetic beyond 2^53, against integers of 128 bits.

use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use sluicegate_testing::{Engine, Server};

const WIDE: &str = include_str!("../../lua/wide.lua");

/// Runs `muldiv` on each group of four numbers, and returns quotient and remainder of each as digits.
const ASK: &str = "
    local actual = {}
    for i = 1, #ARGV, 4 do
        local quotient, rest = muldiv(tonumber(ARGV[i]), tonumber(ARGV[i + 1]),
            tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]))
        actual[#actual + 1] = string.format('%.0f', quotient)
        actual[#actual + 1] = string.format('%.0f', rest)
    end
    return actual
";

/// Numbers below `2^bits`, with as many of each length, and those beside powers of two.
fn below(bits: u32) -> impl Strategy<Value = u64> {
    let any = (0..=bits, any::<u64>()).prop_map(|(bits, number)| number & ((1 << bits) - 1));
    let edges = (0..bits, 0..3_u64).prop_map(|(bit, beside)| (1_u64 << bit) + beside);
    let top = (0..3_u64).prop_map(move |beside| (1_u64 << bits) - 1 - beside);
    prop_oneof![4 => any, 2 => edges.prop_map(move |it| it.saturating_sub(1).min((1 << bits) - 1)), 1 => top]
}

#[test]
fn script_products_and_quotients_are_exact() {
    let server = Server::start(Engine::Redis70);
    let mut connection = server.connect();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let four = (below(53), below(52), below(52), below(50).prop_map(|c| c + 1));
    let mut beyond = 0;
    for _ in 0..100 {
        let cases: Vec<_> =
            (0..1000).map(|_| four.new_tree(&mut runner).unwrap().current()).collect();
        let mut eval = redis::cmd("EVAL");
        eval.arg(format!("{WIDE}{ASK}")).arg(0);
        for &(a, b, add, c) in &cases {
            eval.arg(a).arg(b).arg(add).arg(c);
        }
        let actual: Vec<String> = eval.query(&mut connection).unwrap();
        for (&(a, b, add, c), actual) in cases.iter().zip(actual.chunks(2)) {
            let sum = u128::from(a) * u128::from(b) + u128::from(add);
            let (quotient, rest) = (sum / u128::from(c), sum % u128::from(c));
            let formula = format!("({a} * {b} + {add}) / {c}");
            assert_eq!(actual[1].parse(), Ok(rest), "the remainder of {formula}");
            let found: u128 = actual[0].parse().unwrap();
            if quotient < 1 << 53 {
                assert_eq!(found, quotient, "{formula}");
            } else {
                assert!(found >= 1 << 53, "{formula} returns {found}");
                beyond += 1;
            }
        }
    }
    assert!(beyond > 10_000, "{beyond} of 100000 quotients were beyond 2^53");
}
