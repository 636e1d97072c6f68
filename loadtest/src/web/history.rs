//! Figures of the last half hour, second by second, and what was changed meanwhile.

use std::collections::VecDeque;

use serde::Serialize;

const MOST_POINTS: usize = 1800;
const MOST_MARKS: usize = 200;

/// One second's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Point {
    pub(super) t: f64,
    pub(super) ttft_p50_ms: Option<f64>,
    pub(super) ttft_p95_ms: Option<f64>,
    pub(super) tpot_p50_ms: Option<f64>,
    pub(super) tpot_p95_ms: Option<f64>,
    pub(super) tops: Option<f64>,
    pub(super) hit_pct: Option<f64>,
    pub(super) active: usize,
}

/// Something that was done, and when.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Mark {
    pub(super) t: f64,
    pub(super) kind: &'static str,
    pub(super) label: String,
}

/// Points as columns, which is how they are drawn.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Columns {
    t: Vec<f64>,
    ttft_p50_ms: Vec<Option<f64>>,
    ttft_p95_ms: Vec<Option<f64>>,
    tpot_p50_ms: Vec<Option<f64>>,
    tpot_p95_ms: Vec<Option<f64>>,
    tops: Vec<Option<f64>>,
    hit_pct: Vec<Option<f64>>,
    active: Vec<usize>,
}

#[derive(Debug, Default)]
pub(super) struct History {
    points: VecDeque<Point>,
    marks: VecDeque<Mark>,
}

impl History {
    pub(super) fn add(&mut self, point: Point) {
        if self.points.len() >= MOST_POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    pub(super) fn mark(&mut self, mark: Mark) {
        if self.marks.len() >= MOST_MARKS {
            self.marks.pop_front();
        }
        self.marks.push_back(mark);
    }

    pub(super) fn marks(&self) -> Vec<Mark> {
        self.marks.iter().cloned().collect()
    }

    pub(super) fn columns(&self) -> Columns {
        let mut columns = Columns::default();
        for point in &self.points {
            columns.t.push(point.t);
            columns.ttft_p50_ms.push(point.ttft_p50_ms);
            columns.ttft_p95_ms.push(point.ttft_p95_ms);
            columns.tpot_p50_ms.push(point.tpot_p50_ms);
            columns.tpot_p95_ms.push(point.tpot_p95_ms);
            columns.tops.push(point.tops);
            columns.hit_pct.push(point.hit_pct);
            columns.active.push(point.active);
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_an_hour_is_kept_and_no_more() {
        let mut history = History::default();
        for n in 0..5000 {
            history.add(Point { t: f64::from(n), active: 1, ..Point::default() });
            history.mark(Mark { t: f64::from(n), kind: "mode", label: "kv".to_owned() });
        }
        let columns = history.columns();
        assert_eq!((columns.t.len(), columns.t[0], columns.active.len()), (MOST_POINTS, 3200.0, MOST_POINTS));
        assert_eq!((history.marks().len(), history.marks()[0].t), (MOST_MARKS, 4800.0));
    }
}
