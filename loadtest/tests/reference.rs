//! The virtual-time laboratory beside the reference deployment's tables: three simulated engines, round robin
//! and the plain cost, the delay outside the engine on. Prints model / reference; fails outside the bands.

use kvlane_loadtest::results::LevelFigures;
use kvlane_loadtest::simulate::{self, Mode, Row, Settings};
use serde_json::Value;

const MODES: [Mode; 2] = [Mode::RoundRobin, Mode::Dynamo];

/// A figure, how it is called, and how far from the reference it may be: in parts of it, or in points.
struct Band {
    name: &'static str,
    of: fn(&Row) -> f64,
    within: fn(model: f64, reference: f64) -> bool,
}

const BANDS: [Band; 6] = [
    Band {
        name: "tops",
        of: |row| row.figures.tops.unwrap(),
        within: |model, reference| off(model, reference) <= 0.05,
    },
    Band { name: "itl_p50_ms", of: |row| row.figures.itl_p50_ms.unwrap(), within: |m, r| off(m, r) <= 0.08 },
    Band { name: "e2e_p50_s", of: |row| row.figures.e2e_p50_s.unwrap(), within: |m, r| off(m, r) <= 0.10 },
    Band { name: "hit_pct", of: |row| row.figures.hit_pct.unwrap(), within: |m, r| (m - r).abs() <= 6.5 },
    Band {
        name: "ttft_p50_ms",
        of: |row| row.figures.ttft_p50_ms.unwrap(),
        within: |m, r| off(m, r) <= 0.22,
    },
    Band {
        name: "ttft_p95_ms",
        of: |row| row.figures.ttft_p95_ms.unwrap(),
        within: |m, r| off(m, r) <= 0.25,
    },
];

fn rows(settings: &Settings, modes: &[Mode]) -> Vec<Row> {
    let cells = simulate::run(settings, modes, |_, _| ()).unwrap();
    simulate::rows(settings, modes, &cells)
}

fn off(model: f64, reference: f64) -> f64 {
    (model / reference - 1.0).abs()
}

#[test]
fn the_reference_deployment_is_reproduced_at_every_level() {
    let reference: Value = serde_json::from_str(include_str!("../reference/baselines.json")).unwrap();
    let settings = Settings::reference().unwrap();
    let rows = rows(&settings, &MODES);
    assert_eq!(rows.len(), 14);
    let mut misses = Vec::new();
    println!("simulated / reference");
    for row in &rows {
        let mode = if row.mode == Mode::RoundRobin { "rr" } else { "kv" };
        let at = settings.levels.iter().position(|level| *level == row.level).unwrap();
        assert_eq!(reference["levels"][at], row.level);
        let mut line = format!("{mode} {:>3}", row.level);
        for Band { name, of, within } in &BANDS {
            let (model, expected) = (of(row), reference[mode][name][at].as_f64().unwrap());
            line += &format!("  {name} {model:.1} / {expected}");
            // With the plain cost the tail tips over somewhere past 140; where exactly is luck.
            let tail = *name == "ttft_p95_ms" && mode == "kv" && row.level > 140;
            if !tail && !within(model, expected) {
                misses.push(format!("{mode} {} {name}: {model:.1}, reference {expected}", row.level));
            }
        }
        println!("{line}");
    }
    assert!(misses.is_empty(), "outside the bands: {misses:#?}");
    let last = rows.iter().find(|row| row.mode == Mode::Dynamo && row.level == 180).unwrap();
    assert!(
        last.figures.ttft_p95_ms.unwrap() > 1500.0,
        "the plain cost's cliff at 180 is part of the reference"
    );
}

#[test]
fn a_run_is_its_seed() {
    let settings = Settings::reference().unwrap();
    let settings = settings.overlaid("levels = [40]\nseeds = 2\nwindow_s = 60", "test").unwrap();
    let figures = |settings: &Settings| simulate::run(settings, &MODES, |_, _| ()).unwrap();
    let once = figures(&settings);
    assert_eq!(once, figures(&settings));
    let other = settings.overlaid("first_seed = 7", "test").unwrap();
    assert_ne!(once, figures(&other));
}

#[test]
fn without_the_delay_outside_the_engine_first_tokens_come_sooner() {
    let with = Settings::reference().unwrap();
    let with = with.overlaid("levels = [60]\nseeds = 1\nwindow_s = 120", "test").unwrap();
    let without = with.overlaid("engine.outside.enabled = false", "test").unwrap();
    let [with, without] = [with, without].map(|settings| rows(&settings, &[Mode::Dynamo])[0].figures);
    // 25 ms on the way in, 55 + 3.3 for each of 20 in flight on the way back.
    let delay = with.ttft_p50_ms.unwrap() - without.ttft_p50_ms.unwrap();
    assert!((120.0..170.0).contains(&delay), "{delay} ms");
}

/// What was seen at 170: with the plain cost requests bunch on a worker past its slots and wait there.
#[test]
fn the_diagnosis_of_the_crossover_is_reproduced() {
    let settings = Settings::reference().unwrap().overlaid("levels = [170]", "test").unwrap();
    let found = rows(&settings, &[Mode::RoundRobin, Mode::Dynamo, Mode::Kvlane]);
    let [rr, plain, ours]: [LevelFigures; 3] = [0, 1, 2].map(|n| found[n].figures);
    let spread = |of: &LevelFigures| of.inflight_spread_max.unwrap();
    let worst = |of: &LevelFigures| of.queue_ms_worst.unwrap();
    // Reference: a spread of 28 to 32 against 12 to 14, a worst wait of 1.48 s against 0.04 s.
    assert!((22.0..36.0).contains(&spread(&plain)), "{}", spread(&plain));
    assert!((9.0..19.0).contains(&spread(&rr)), "{}", spread(&rr));
    assert!(worst(&plain) > 500.0 && worst(&rr) < 150.0, "{} and {} ms", worst(&plain), worst(&rr));
    assert!(worst(&ours) < 50.0 && spread(&ours) < spread(&rr), "{} ms, {}", worst(&ours), spread(&ours));
    assert!(rr.inflight_skew.unwrap() < 1.15);
}

/// Inputs of each turn are near the reference's, answers near its mean of 830; its own table of answers by turn (555 for the
/// first, 1,008 for the third) is not reproduced. Behind round robin first tokens take longer with every turn, here they do not.
#[test]
fn turns_have_the_references_lengths_and_stay_fast() {
    let settings = Settings::reference().unwrap().overlaid("levels = [120]\nseeds = 2", "test").unwrap();
    let cells = simulate::run(&settings, &[Mode::RoundRobin, Mode::Kvlane], |_, _| ()).unwrap();
    for cell in &cells {
        let turns = &cell.by_turn;
        assert_eq!(turns.len(), 5);
        for (turn, input) in turns.iter().zip([3500.0, 4100.0, 5000.0, 6100.0, 7000.0]) {
            assert!((turn.prompt_tokens.unwrap() / input - 1.0).abs() < 0.20, "turn {}: {turn:?}", turn.turn);
            assert!(turn.e2e_p50_s.is_some_and(|seconds| (15.0..60.0).contains(&seconds)), "{turn:?}");
        }
        let requests: f64 = turns.iter().map(|turn| turn.requests as f64).sum();
        let tokens: f64 = turns.iter().map(|turn| turn.output_tokens.unwrap() * turn.requests as f64).sum();
        assert!((tokens / requests / 830.0 - 1.0).abs() < 0.06, "{} tokens an answer", tokens / requests);
        let (cached, ttft): (Vec<f64>, Vec<f64>) =
            turns.iter().map(|turn| (turn.hit_pct.unwrap(), turn.ttft_p50_ms.unwrap())).unzip();
        if cell.mode == "kvlane" {
            assert!(cached.iter().all(|pct| *pct > 95.0), "{cached:?}");
            assert!(ttft[1..].iter().all(|ms| *ms < 1.05 * ttft[0]), "{ttft:?}");
        } else {
            // Later turns miss what another worker computed, and the more the longer they are.
            assert!(cached[1..].iter().all(|pct| *pct < 90.0), "{cached:?}");
            assert!(ttft[1..].iter().all(|ms| *ms > 1.2 * ttft[0]) && ttft[4] > ttft[1], "{ttft:?}");
        }
    }
    // The first turn is the same behind both: everybody has the documents.
    let first = |mode: &str| {
        let of: Vec<f64> = cells
            .iter()
            .filter(|cell| cell.mode == mode)
            .map(|cell| cell.by_turn[0].ttft_p50_ms.unwrap())
            .collect();
        of.iter().sum::<f64>() / of.len() as f64
    };
    let (rr, ours) = (first("round_robin"), first("kvlane"));
    assert!((rr / ours - 1.0).abs() < 0.05, "{rr} and {ours} ms");
}

/// Where no document is shared, round robin finds a third of what is there; the reference expected a quarter.
#[test]
fn without_shared_documents_round_robin_finds_little() {
    let scenario = simulate::Scenario::find("own_documents").unwrap();
    let settings = scenario.settings(&Settings::reference().unwrap(), None).unwrap();
    let settings = settings.overlaid("levels = [40, 120]\nseeds = 2", "test").unwrap();
    for row in rows(&settings, &[Mode::RoundRobin, Mode::Kvlane]) {
        let (hit, level) = (row.figures.hit_pct.unwrap(), row.level);
        match row.mode {
            Mode::RoundRobin => assert!((20.0..45.0).contains(&hit), "{hit} at {level}"),
            _ => assert!(hit > 65.0, "all but first turns: {hit} at {level}"),
        }
    }
}

/// Drafts make tokens come sooner. First tokens wait for longer steps: at 60 their p95 stays well below round robin's; at 180 it
/// passes the objective, which `simulate --phases` shows and nothing here hides. How often drafts are right is reported.
#[test]
fn speculation_lowers_the_time_between_tokens() {
    let settings = Settings::reference().unwrap().overlaid("levels = [60]\nseeds = 2", "test").unwrap();
    let phases = Mode::PHASES.map(|(name, mode, engine)| {
        let mut settings = settings.clone();
        let outside = settings.engine.outside;
        settings.engine = kvlane_engine_adapters::sim::Calibration {
            outside,
            ..kvlane_engine_adapters::sim::Calibration::preset(engine).unwrap()
        };
        (name, rows(&settings, &[mode])[0].figures)
    });
    let [(_, one), (_, two), (_, draft), (_, eagle)] = phases;
    assert_eq!((two.tokens_per_step, two.acceptance_pct), (Some(1.0), None));
    assert!(draft.acceptance_pct.is_some_and(|pct| (55.0..=70.0).contains(&pct)), "{draft:?}");
    assert!(eagle.acceptance_pct.is_some_and(|pct| (70.0..=85.0).contains(&pct)), "{eagle:?}");
    for of in [draft, eagle] {
        assert!(of.tokens_per_step.unwrap() > 1.5 && of.itl_p50_ms < two.itl_p50_ms, "{of:?}");
        assert!(of.ttft_p95_ms < one.ttft_p95_ms && of.tops > two.tops, "{of:?}");
        assert!(of.ttft_p95_ms.unwrap() < 1.3 * two.ttft_p95_ms.unwrap(), "{of:?} and {two:?}");
    }
    assert!(eagle.itl_p50_ms < draft.itl_p50_ms);
}

/// Conversations that begin at random moments, and documents of uneven popularity: what is offered is served, and first tokens
/// come much sooner than behind round robin.
#[test]
fn open_loops_and_uneven_popularity_run_too() {
    for (name, open) in [("poisson", true), ("gamma", true), ("zipf_groups", false)] {
        let scenario = simulate::Scenario::find(name).unwrap();
        let settings = scenario.settings(&Settings::reference().unwrap(), None).unwrap();
        let settings = settings.overlaid("seeds = 3", "test").unwrap();
        let cells = simulate::run(&settings, &[Mode::RoundRobin, Mode::Kvlane], |_, _| ()).unwrap();
        let found = simulate::rows(&settings, &[Mode::RoundRobin, Mode::Kvlane], &cells);
        let (base, ours) = found.split_at(settings.levels.len());
        for (base, ours) in base.iter().zip(ours) {
            let ratio = ours.figures.ttft_p95_ms.unwrap() / base.figures.ttft_p95_ms.unwrap();
            assert!(ratio < 0.7, "{name} at {}: {ratio}", ours.level);
            if open {
                // Four turns a conversation on average, some seconds' worth of chance.
                let offered = ours.level as f64 * 4.0 / 60.0;
                assert!(
                    (ours.figures.rps.unwrap() / offered - 1.0).abs() < 0.2,
                    "{name}: {:?}",
                    ours.figures
                );
            }
        }
        // The same conversations begin at the same moments, however they are placed.
        let begun = |mode: &str| -> Vec<u64> {
            cells.iter().filter(|cell| cell.mode == mode).map(|cell| cell.by_turn[0].requests).collect()
        };
        for (rr, ours) in begun("round_robin").iter().zip(&begun("kvlane")).filter(|_| open) {
            assert!((*rr as f64 / *ours as f64 - 1.0).abs() < 0.1, "{name}: {rr} and {ours} first turns");
        }
    }
}

/// A trace that starts over is not a trace that is cached.
#[test]
fn what_shares_nothing_is_never_found() {
    let line = |n: usize| {
        let names: Vec<usize> = (0..4).map(|at| n * 4 + at).collect();
        format!(r#"{{"timestamp":{},"input_length":2048,"output_length":50,"hash_ids":{names:?}}}"#, n * 500)
    };
    let path = std::env::temp_dir().join(format!("kvlane-unshared-{}.jsonl", std::process::id()));
    std::fs::write(&path, (0..100).map(line).collect::<Vec<_>>().join("\n")).unwrap();
    let scenario = simulate::Scenario::find("trace").unwrap();
    let settings = scenario.settings(&Settings::reference().unwrap(), path.to_str()).unwrap();
    let settings = settings.overlaid("levels = [100]\nworkers = 3\nwindow_s = 300", "test").unwrap();
    for row in rows(&settings, &[Mode::RoundRobin, Mode::Kvlane]) {
        assert_eq!(row.figures.hit_pct, Some(0.0), "{row:?}");
    }
    std::fs::remove_file(path).unwrap();
}
