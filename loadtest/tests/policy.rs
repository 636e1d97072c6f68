//! What the default policy promises, in virtual time: never worse than round robin, whatever the load, and near the best
//! of the others on every workload. Tables are in `benches/POLICY.md`.

use kvlane_loadtest::simulate::{self, Mode, Row, Scenario, Settings};

const MODES: [Mode; 5] =
    [Mode::RoundRobin, Mode::LeastLoaded, Mode::Dynamo, Mode::Session, Mode::KvlaneSession];

fn rows(scenario: &str, overlay: &str, modes: &[Mode]) -> Vec<Row> {
    let settings = Scenario::find(scenario).unwrap().settings(&Settings::reference().unwrap(), None).unwrap();
    let settings = settings.overlaid(overlay, "test").unwrap();
    let cells = simulate::run(&settings, modes, |_, _| ()).unwrap();
    simulate::rows(&settings, modes, &cells)
}

fn of(rows: &[Row], mode: Mode, level: usize) -> &Row {
    rows.iter().find(|row| row.mode == mode && row.level == level).unwrap()
}

/// At most, with some room for chance.
fn at_most(what: &str, level: usize, found: f64, most: f64) {
    assert!(found <= most, "{what} at {level}: {found:.1}, expected at most {most:.1}");
}

/// Six seeds, every level from a third of the slots to a quarter more than there are.
#[test]
fn kv_placement_never_loses_to_round_robin() {
    let modes = [Mode::RoundRobin, Mode::Dynamo, Mode::Kvlane, Mode::Session, Mode::KvlaneSession];
    let rows = rows("reference", "", &modes);
    for level in [60, 80, 100, 120, 140, 160, 180, 188, 200, 240] {
        let [ours, base, plain, session, with_id] =
            [Mode::Kvlane, Mode::RoundRobin, Mode::Dynamo, Mode::Session, Mode::KvlaneSession]
                .map(|mode| of(&rows, mode, level).figures);
        at_most("TTFT p50", level, ours.ttft_p50_ms.unwrap(), 1.02 * base.ttft_p50_ms.unwrap());
        at_most("TTFT p95", level, ours.ttft_p95_ms.unwrap(), 1.02 * base.ttft_p95_ms.unwrap());
        at_most("ITL p50", level, ours.itl_p50_ms.unwrap(), 1.02 * base.itl_p50_ms.unwrap());
        at_most("E2E p50", level, ours.e2e_p50_s.unwrap(), 1.02 * base.e2e_p50_s.unwrap());
        at_most("round robin's tokens/s", level, 0.98 * base.tops.unwrap(), ours.tops.unwrap());
        at_most("the plain cost's tokens/s", level, 0.98 * plain.tops.unwrap(), ours.tops.unwrap());
        at_most("misses", level, 100.0 - ours.hit_pct.unwrap(), 7.0);
        if level <= 180 {
            at_most("TTFT p95", level, ours.ttft_p95_ms.unwrap(), 600.0);
        }
        at_most(
            "TTFT p95 with ids",
            level,
            with_id.ttft_p95_ms.unwrap(),
            1.10 * session.ttft_p95_ms.unwrap(),
        );
    }
}

/// Where nothing is shared, round robin spaces a closed loop's prompts evenly by itself; see POLICY.md.
#[test]
fn no_workload_makes_it_lose_by_much() {
    let few = "seeds = 2";
    for (scenario, overlay, within) in [
        ("think_0", few, 1.05),
        ("think_8", few, 1.05),
        ("hot_document", few, 1.05),
        ("unique", "seeds = 3", 1.15),
        ("many_documents", few, 1.05),
        ("uneven", few, 1.05),
        ("slots_48", few, 1.05),
        ("slots_80", few, 1.05),
        ("slots_unknown", few, 1.05),
        ("lag_500", few, 1.05),
        ("no_events", few, 1.05),
        ("routers_4", few, 1.05),
        ("routers_4_engines", few, 1.05),
    ] {
        let rows =
            rows(scenario, overlay, &[Mode::Kvlane, Mode::RoundRobin, Mode::LeastLoaded, Mode::Dynamo]);
        for ours in rows.iter().filter(|row| row.mode == Mode::Kvlane) {
            let others = rows.iter().filter(|row| row.mode != Mode::Kvlane && row.level == ours.level);
            let best = others.map(|row| row.figures.ttft_p95_ms.unwrap()).fold(f64::INFINITY, f64::min);
            at_most(scenario, ours.level, ours.figures.ttft_p95_ms.unwrap(), within * best);
        }
    }
}

/// Requests that name their conversation do as well as if it were pinned, without its weaknesses.
#[test]
fn an_id_is_as_good_as_a_pin() {
    for scenario in ["think_2", "many_documents", "routers_2"] {
        let rows = rows(scenario, "seeds = 2", &MODES);
        for ours in rows.iter().filter(|row| row.mode == Mode::KvlaneSession) {
            let pinned = of(&rows, Mode::Session, ours.level).figures.ttft_p95_ms.unwrap();
            at_most(scenario, ours.level, ours.figures.ttft_p95_ms.unwrap(), 1.10 * pinned);
        }
    }
}

/// When every worker is full a plain queue forgets where prompts are cached; waiting at the cheapest does not.
#[test]
fn overflow_by_cost_beats_a_plain_queue() {
    let levels = "levels = [200, 240]\nseeds = 2";
    let by_cost = rows("reference", levels, &[Mode::Kvlane, Mode::RoundRobin]);
    let queued = rows("reference", &format!("{levels}\nrouter.overflow = 0"), &[Mode::Kvlane]);
    for level in [200, 240] {
        let [by_cost, queued] = [&by_cost, &queued].map(|rows| of(rows, Mode::Kvlane, level).figures);
        at_most(
            "TTFT p50 with overflow",
            level,
            by_cost.ttft_p50_ms.unwrap(),
            0.9 * queued.ttft_p50_ms.unwrap(),
        );
        at_most("hits of a plain queue", level, queued.hit_pct.unwrap(), 90.0);
    }
    // With no place to wait anywhere, nothing is lost all the same.
    assert!(
        of(&queued, Mode::Kvlane, 240).figures.rps.unwrap()
            > 0.8 * of(&by_cost, Mode::RoundRobin, 240).figures.rps.unwrap()
    );
}

/// At the slots' limit a conversation that leaves its full worker computes its prompt again, and everybody is slower for
/// it; but nobody waits long for a slot while another is free.
#[test]
fn full_workers_are_waited_for_but_not_for_long() {
    let at_the_limit = rows("think_2", "levels = [200]\nseeds = 2", &[Mode::Kvlane, Mode::Session]);
    let [ours, pinned] = [Mode::Kvlane, Mode::Session].map(|mode| of(&at_the_limit, mode, 200).figures);
    at_most("pinned sessions' tokens/s", 200, 0.96 * pinned.tops.unwrap(), ours.tops.unwrap());
    let long_answers = "levels = [22]\nseeds = 2\nengine.max_batch = 8\nworkload.answer_bounds = [1, 6000]\n\
        workload.answer_tokens = [3000.0, 900.0]\nworkload.first_answer_tokens = [3000.0, 900.0]";
    let few_slots = rows("think_2", long_answers, &[Mode::Kvlane]);
    at_most("TTFT p95", 22, of(&few_slots, Mode::Kvlane, 22).figures.ttft_p95_ms.unwrap(), 1000.0);
}

/// The plain cost crowds workers past their slots. With some requests placed by load alone to compare with, that is
/// noticed, and placement leans towards load.
#[test]
fn the_safety_net_catches_a_policy_that_loses() {
    let modes = [Mode::Dynamo, Mode::Kvlane];
    let with = rows("holdout", "levels = [188]\nseeds = 2", &modes);
    let without = rows("holdout", "levels = [188]\nseeds = 2\nrouter.holdout = 0", &modes);
    let [caught, fallen] = [&with, &without].map(|rows| of(rows, Mode::Dynamo, 188).figures);
    at_most("TTFT p95 with the net", 188, caught.ttft_p95_ms.unwrap(), 0.6 * fallen.ttft_p95_ms.unwrap());
    // And where placing by cache pays it costs no more than the share that is held out.
    let [watched, alone] = [&with, &without].map(|rows| of(rows, Mode::Kvlane, 188).figures);
    at_most("misses", 188, 100.0 - watched.hit_pct.unwrap(), 100.0 - alone.hit_pct.unwrap() + 2.0);
}
