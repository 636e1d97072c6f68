//! Curves over levels as SVG, to stand in a page without any script.

use std::fmt::Write;

use super::table::escape;

#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    /// Something recorded earlier.
    pub(super) dashed: bool,
    /// Which colour it has; a recorded one has that of the mode it was.
    pub(super) like: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) across: &'a str,
    pub(super) unit: &'a str,
    pub(super) series: Vec<Series>,
    /// What is promised.
    pub(super) limit: Option<f64>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 44.0;
/// Told apart by those who see fewer colours, too (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c6d31"];

impl Chart<'_> {
    /// Empty where there is nothing to draw.
    pub(super) fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| series.points.iter().copied());
        if points().count() < 2 {
            return String::new();
        }
        let (x0, x1) = bounds(points().map(|(x, _)| x));
        let (low, high) = bounds(points().map(|(_, y)| y).chain(self.limit));
        // A tail that explodes would press everything else into the floor.
        let logarithmic = low > 0.0 && high / low > 6.0 && self.unit != "%";
        let (y0, y1) = if logarithmic { (low * 0.9, high * 1.1) } else { (0.0, high * 1.08) };
        let across = |x: f64| LEFT + (WIDTH - LEFT - RIGHT) * (x - x0) / (x1 - x0).max(1e-9);
        let scaled = |y: f64| {
            if logarithmic { (y.max(y0) / y0).ln() / (y1 / y0).ln() } else { (y - y0) / (y1 - y0).max(1e-9) }
        };
        let up = |y: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * scaled(y);
        let mut out = format!(
            "<figure><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\"><text class=\"title\" x=\"{LEFT}\" y=\"18\">{0}{1}</text>",
            escape(&format!("{}, {}", self.title, self.unit)),
            if logarithmic { " (log scale)" } else { "" }
        );
        for tick in ticks(y0, y1, logarithmic) {
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\"/><text class=\"tick\" text-anchor=\"end\" x=\"{2:.1}\" y=\"{3:.1}\">{4}</text>",
                WIDTH - RIGHT,
                up(tick),
                LEFT - 6.0,
                up(tick) + 4.0,
                short(tick)
            );
        }
        let mut levels: Vec<f64> = points().map(|(x, _)| x).collect();
        levels.sort_unstable_by(f64::total_cmp);
        levels.dedup();
        for level in levels {
            let _ = write!(
                out,
                "<text class=\"tick\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                across(level),
                HEIGHT - BOTTOM + 16.0,
                short(level)
            );
        }
        let _ = write!(
            out,
            "<text class=\"tick\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 8.0,
            escape(self.across)
        );
        if let Some(limit) = self.limit {
            let _ = write!(
                out,
                "<line class=\"limit\" x1=\"{LEFT}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\"/><text class=\"tick\" text-anchor=\"end\" x=\"{0:.1}\" y=\"{2:.1}\">objective {3}</text>",
                WIDTH - RIGHT,
                up(limit),
                up(limit) - 4.0,
                short(limit)
            );
        }
        for series in &self.series {
            let colour = COLOURS[series.like % COLOURS.len()];
            let path: Vec<String> =
                series.points.iter().map(|(x, y)| format!("{:.1},{:.1}", across(*x), up(*y))).collect();
            let dash = if series.dashed { " stroke-dasharray=\"5 4\" opacity=\"0.7\"" } else { "" };
            let _ = write!(
                out,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash} points=\"{}\"/>",
                path.join(" ")
            );
            for (x, y) in &series.points {
                let beyond = self.limit.is_some_and(|limit| *y > limit);
                let _ = write!(
                    out,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{}\" fill=\"{}\" stroke=\"{colour}\"><title>{}</title></circle>",
                    across(*x),
                    up(*y),
                    if beyond { 4.5 } else { 3.0 },
                    if beyond { "none" } else { colour },
                    escape(&format!("{} at {}: {} {}", series.name, short(*x), short(*y), self.unit))
                );
            }
        }
        out += "</svg><figcaption>";
        for series in &self.series {
            let _ = write!(
                out,
                "<span style=\"color:{}\">{}</span> {} ",
                COLOURS[series.like % COLOURS.len()],
                if series.dashed { "╍╍" } else { "━━" },
                escape(&series.name)
            );
        }
        if self.limit.is_some() {
            out += "(hollow: beyond the objective)";
        }
        out + "</figcaption></figure>"
    }
}

fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
}

/// Round numbers between two.
fn ticks(low: f64, high: f64, logarithmic: bool) -> Vec<f64> {
    if logarithmic {
        let decades = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
        let all = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|first| first * 10_f64.powi(decade)));
        return all.filter(|tick| (low..=high).contains(tick)).collect();
    }
    let rough = (high - low).max(1e-9) / 5.0;
    let decade = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|first| first * decade).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    (0..=(high / step) as usize).map(|n| n as f64 * step).filter(|tick| *tick >= low).collect()
}

fn short(value: f64) -> String {
    let digits = if value.fract() == 0.0 || value.abs() >= 100.0 {
        0
    } else if value.abs() >= 1.0 {
        1
    } else {
        3
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(0.0, 1000.0, false), [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        assert_eq!(ticks(90.0, 3000.0, true), [100.0, 200.0, 500.0, 1000.0, 2000.0]);
        assert_eq!(ticks(0.0, 0.0, false).first(), Some(&0.0));
    }

    #[test]
    fn a_chart_is_drawn_or_left_out() {
        let series = |points: &[(f64, f64)]| Series {
            name: "<kv>".to_owned(),
            points: points.to_vec(),
            dashed: false,
            like: 0,
        };
        let chart = |series| Chart {
            title: "TTFT",
            across: "level",
            unit: "ms",
            series: vec![series],
            limit: Some(600.0),
        };
        let svg = chart(series(&[(60.0, 300.0), (180.0, 4000.0)])).svg();
        assert!(
            svg.contains("log scale") && svg.contains("&lt;kv&gt; at 180: 4000 ms") && !svg.contains("NaN"),
            "{svg}"
        );
        assert_eq!(chart(series(&[(60.0, 300.0)])).svg(), "");
        assert!(!chart(series(&[(60.0, 0.0), (61.0, 0.0)])).svg().contains("NaN"));
    }
}
