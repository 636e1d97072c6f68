//! What a run came to, for people.

use std::fmt::Write;

use crate::live::Written;
use crate::measure::Quantiles;
use crate::report::Table;

pub fn report(written: &Written) -> String {
    let report = &written.report;
    let all = &report.all;
    let mut out = String::new();
    let level = written.level.map_or_else(|| "a ramp or a schedule".to_owned(), |level| level.to_string());
    let _ = writeln!(
        out,
        "{level}: {} requests in {:.0} s, {:.2}/s, {:.1} output tokens/s ({:.1} with prompts)",
        all.requests, all.seconds, all.requests_per_s, all.output_tokens_per_s, all.total_tokens_per_s
    );
    let mut table = Table::new("ms", &["", "count", "mean", "p50", "p90", "p95", "p99", "max"]);
    let mut line = |name: String, of: &Quantiles| {
        let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
        let numbers = [of.mean, of.p50, of.p90, of.p95, of.p99, of.max].map(ms);
        table.rows.push([name, of.count.to_string()].into_iter().chain(numbers).collect());
    };
    line("time to first token".to_owned(), &all.ttft_s);
    line("time per token after it".to_owned(), &all.tpot_s);
    line("between chunks, raw gaps".to_owned(), &all.itl_gap_s);
    line("inter-token, request means".to_owned(), &all.itl_mean_s);
    line("end to end".to_owned(), &all.e2e_s);
    line("whole conversations".to_owned(), &report.conversations.seconds);
    report.by_turn.iter().for_each(|(turn, of)| line(format!("first token, turn {turn}"), &of.ttft_s));
    report
        .by_worker
        .iter()
        .for_each(|(worker, of)| line(format!("first token, worker {worker}"), &of.ttft_s));
    out += &table.terminal();
    let _ = writeln!(
        out,
        "\ngoodput {:.2}/s, {:.1} % of requests (first token within {:.0} ms, {:.0} ms per token)",
        all.goodput_per_s,
        all.goodput_share * 100.0,
        report.objective.ttft_s * 1e3,
        report.objective.tpot_s * 1e3
    );
    let conversations = &report.conversations;
    let _ = write!(
        out,
        "{} conversations were completed ({:.1} turns on average), {} failed, {} were cut short, {} go on",
        conversations.completed,
        conversations.turns_mean,
        conversations.failed,
        conversations.cut_short,
        conversations.active
    );
    if let Some(share) = conversations.later_turns_faster_share {
        let _ = write!(
            out,
            "; in {:.0} % later turns had their first token sooner than the first",
            share * 100.0
        );
    }
    out.push('\n');
    if let Some(share) = all.cached_share {
        let _ = writeln!(out, "{:.1} % of prompt tokens were cached", share * 100.0);
    }
    if let Some(decisions) = &report.decisions {
        let _ = writeln!(
            out,
            "{} decisions joined, {} not found: the router believed {} tokens cached, engines reported {}; {} believed too much; {} of them \
             went to the warmest worker",
            decisions.joined,
            decisions.missed,
            decisions.believed_tokens,
            decisions.reported_tokens,
            decisions.over_believed,
            decisions.to_the_warmest
        );
    }
    if let Some(broker) = &written.broker {
        let _ = writeln!(
            out,
            "the broker was asked {} times; {} questions were made offline",
            broker.asked, broker.failed
        );
    }
    for (class, count) in &all.errors {
        let _ = writeln!(out, "{count} failed: {}", class.name());
    }
    for (complaint, count) in report.complaints.iter().take(5) {
        let _ = writeln!(out, "  {count} times: {complaint}");
    }
    if conversations.passed_over > 0 {
        let _ =
            writeln!(out, "{} conversations were passed over: too many at a time", conversations.passed_over);
    }
    if report.records_dropped > 0 {
        let _ = writeln!(out, "{} records were dropped: the disk was too slow", report.records_dropped);
    }
    let generator = &written.generator;
    let _ = writeln!(
        out,
        "generator: {:.2} cores, timers {:.1} ms late (p99), requests {:.1} ms",
        generator.cpu_cores,
        generator.timer_lag_p99_s * 1e3,
        generator.send_lag_p99_s * 1e3
    );
    let unfinished = &report.unfinished;
    if unfinished.requests > 0 {
        let _ = writeln!(
            out,
            "{} requests were not over, {} of them late with their first token, the oldest {:.1} s old",
            unfinished.requests, unfinished.late, unfinished.oldest_s
        );
    }
    for change in &written.changes {
        let _ = writeln!(out, "changed {:.0} s after the start: {}", change.at_s, change.level);
    }
    if written.interrupted {
        out += "it was ended before its time\n";
    }
    if let Some(why) = &written.invalid {
        let _ = writeln!(out, "INVALID: {why}");
    }
    out
}
