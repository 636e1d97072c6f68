//! The virtual-time laboratory beside the reference deployment's tables: three simulated engines, round robin
//! and the plain cost, the delay outside the engine on. Prints model / reference; fails outside the bands.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kvlane_loadtest::simulate::{Mode, Row, Settings, run};
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
        of: |row| row.figures.tops,
        within: |model, reference| off(model, reference) <= 0.05,
    },
    Band { name: "itl_p50_ms", of: |row| row.figures.itl_p50_ms, within: |m, r| off(m, r) <= 0.08 },
    Band { name: "e2e_p50_s", of: |row| row.figures.e2e_p50_s, within: |m, r| off(m, r) <= 0.10 },
    Band { name: "hit_pct", of: |row| row.figures.hit_pct, within: |m, r| (m - r).abs() <= 6.5 },
    Band { name: "ttft_p50_ms", of: |row| row.figures.ttft_p50_ms, within: |m, r| off(m, r) <= 0.22 },
    Band { name: "ttft_p95_ms", of: |row| row.figures.ttft_p95_ms, within: |m, r| off(m, r) <= 0.25 },
];

fn off(model: f64, reference: f64) -> f64 {
    (model / reference - 1.0).abs()
}

#[test]
fn the_reference_deployment_is_reproduced_at_every_level() {
    let reference: Value = serde_json::from_str(include_str!("../reference/baselines.json")).unwrap();
    let settings = Settings::reference().unwrap();
    let rows = run(&settings, &MODES, |_, _| ()).unwrap();
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
    assert!(last.figures.ttft_p95_ms > 1500.0, "the plain cost's cliff at 180 is part of the reference");
}

#[test]
fn a_run_is_its_seed() {
    let settings = Settings::reference().unwrap();
    let settings = settings.overlaid("levels = [40]\nseeds = 2\nwindow_s = 60", "test").unwrap();
    let figures = |settings: &Settings| run(settings, &MODES, |_, _| ()).unwrap();
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
    let [with, without] =
        [with, without].map(|settings| run(&settings, &[Mode::Dynamo], |_, _| ()).unwrap()[0].figures);
    // 25 ms on the way in, 55 + 3.3 for each of 20 in flight on the way back.
    let delay = with.ttft_p50_ms - without.ttft_p50_ms;
    assert!((120.0..170.0).contains(&delay), "{delay} ms");
}
