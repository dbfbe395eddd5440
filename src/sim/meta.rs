//! The simulator judged: seeds that must hold, the same seed twice, mutants that must be caught, and enough happening.

use super::mutants::{ALL, Mutant};
use super::oracle::Counts;
use super::run::{Summary, must_hold, quietly, run};
use super::scenarios::terms::SELDOM;

/// Seeds that run with every build.
const SEEDS: u64 = 200;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn range(from: u64, count: u64) -> Vec<Summary> {
    (from..from + count).map(must_hold).collect()
}

#[test]
fn seeds_of_the_first_half_hold() {
    range(0, SEEDS / 2);
}

#[test]
fn seeds_of_the_second_half_hold() {
    range(SEEDS / 2, SEEDS / 2);
}

#[test]
fn the_same_seed_twice_is_the_same_run() {
    for seed in 0..3 {
        let (first, second) = (must_hold(seed), must_hold(seed));
        assert_eq!(first, second);
        assert_ne!(first.checksum, must_hold(seed + 1_000).checksum, "another seed is another run");
    }
}

#[test]
fn every_mutant_is_caught() {
    let mut survivors = Vec::new();
    for mutant in ALL {
        let seldom = SELDOM.iter().any(|scenario| quietly(|| scenario(mutant)).is_err());
        if !seldom && (0..SEEDS).all(|seed| run(seed, mutant, false).is_ok()) {
            survivors.push(mutant);
        }
    }
    assert!(survivors.is_empty(), "not caught within {SEEDS} seeds: {survivors:?}");
}

#[test]
fn enough_happens() {
    let mut sum = Counts::default();
    for summary in range(0, 10) {
        sum.committed += summary.counts.committed;
        sum.nothing += summary.counts.nothing;
        sum.lost += summary.counts.lost;
        sum.fenced += summary.counts.fenced;
        sum.acked += summary.counts.acked;
        sum.terms += summary.counts.terms;
        sum.with_offsets += summary.counts.with_offsets;
        sum.plain_commits += summary.counts.plain_commits;
    }
    let Counts { committed, nothing, lost, fenced, acked, terms, with_offsets, plain_commits } = sum;
    let few =
        [(committed, 500), (nothing, 100), (lost, 20), (fenced, 1), (acked, 500), (terms, 20), (with_offsets, 50)];
    assert!(few.iter().all(|(count, least)| count >= least) && plain_commits >= 50, "{sum:?}");
}

/// `SIM_SEED=n cargo test --test sim one_seed -- --ignored --nocapture`
#[test]
#[ignore = "for a seed that failed"]
fn one_seed() {
    must_hold(number("SIM_SEED", 0));
}

/// `scripts/sim.sh`
#[test]
#[ignore = "takes long"]
fn many_seeds() {
    range(number("SIM_FROM", 0), number("SIM_COUNT", 1_000));
}

/// `SIM_MUTANT=NoLease cargo test --test sim one_mutant -- --ignored --nocapture`: by which seed it is caught, and how.
#[test]
#[ignore = "to look at"]
fn one_mutant() {
    let name = std::env::var("SIM_MUTANT").unwrap_or_default();
    let mutant = ALL.into_iter().find(|mutant| format!("{mutant:?}") == name).unwrap_or(Mutant::None);
    for seed in 0..number("SIM_COUNT", SEEDS) {
        if let Err(text) = run(seed, mutant, false) {
            panic!("{mutant:?} is caught by seed {seed}: {text}");
        }
    }
}
