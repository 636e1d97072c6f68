//! Everything that can go wrong, in virtual time: a thousand seeds in which what must hold does, and mistakes made on
//! purpose, each of which is found.

use kvlane_loadtest::faults::{End, FAULTS, Lane, Mutant, Soak, Tally, soak};

const SEEDS: std::ops::RangeInclusive<u64> = 1..=1000;
/// Within so many seeds every mistake is found.
const FOUND_WITHIN: u64 = 60;

#[test]
fn what_must_hold_holds_whatever_goes_wrong() {
    let lane = Lane::new().unwrap();
    let mut tally = Tally::default();
    for seed in SEEDS {
        let outcome = lane.run(seed, false, None).unwrap();
        assert!(
            outcome.violation.is_none(),
            "seed {seed}: {}\nreplay: cargo run -p kvlane-loadtest --bin kvlane-load -- faults --seed {seed} --trace",
            outcome.violation.unwrap_or_default()
        );
        tally.add(&outcome.tally);
    }
    for fault in FAULTS {
        assert!(tally.faults.contains_key(fault), "{fault} never happened: {tally}");
    }
    for end in End::ALL {
        assert!(tally.ends.contains_key(end.name()), "nobody ended as {}: {tally}", end.name());
    }
    for check in ["loads", "order", "waiting", "trials", "blocks", "blocks_at_most", "rest"] {
        assert!(tally.checks.contains_key(check), "{check} was never looked at: {tally}");
    }
    for seen in ["retries", "gaps_found", "snapshots_whole", "snapshots_failed"] {
        assert!(tally.seen.contains_key(seen), "{seen} never came up: {tally}");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let (one, other) = (Lane::new().unwrap(), Lane::new().unwrap());
    let mut digests = std::collections::HashSet::new();
    for seed in 1..=25 {
        let first = one.run(seed, false, None).unwrap();
        let again = other.run(seed, true, None).unwrap();
        assert_eq!((first.digest, first.tally), (again.digest, again.tally), "seed {seed}");
        assert!(again.trace.len() > 100);
        digests.insert(first.digest);
    }
    assert_eq!(digests.len(), 25);
}

#[test]
fn a_mistake_made_on_purpose_is_found() {
    let lane = Lane::new().unwrap();
    for mutant in Mutant::ALL {
        let found =
            (1..=FOUND_WITHIN).find_map(|seed| lane.run(seed, false, Some(mutant)).unwrap().violation);
        let found = found.unwrap_or_else(|| panic!("{mutant:?} was not found"));
        let rule = match mutant {
            Mutant::Swallows => "1:",
            Mutant::ReleasesEarly | Mutant::Leaks => "2:",
            Mutant::NoCursor | Mutant::StaleSnapshot | Mutant::KeepsLost => "3:",
            Mutant::PushesIn => "4:",
            Mutant::LosesCalls => "5:",
            Mutant::KeepsTrials => "6:",
        };
        assert!(found.starts_with(rule), "{mutant:?} was found as {found}");
    }
}

#[test]
fn a_day_of_events_stays_within_the_budget() {
    let soaked = soak(&Soak { days: 1.0, ..Soak::default() }, |_, _| ()).unwrap();
    assert_eq!(soaked.bytes.len(), 24);
    assert!(soaked.forgotten_blocks > 0, "the budget was never met");
    assert!(soaked.restarts > 0 && soaked.departures > 0, "{soaked:?}");
    // A single day is short for a line; `kvlane-load faults --soak-days 30` holds a month to a twentieth.
    assert!(soaked.rise().abs() < 0.25, "{:?}", soaked.bytes);
    assert!(soaked.held_rise() > -0.25, "{:?}", soaked.held);
}
