//! Sums over values, what can be said of differences between runs, and of curves over levels.

/// The value below which this share of `values` lies, between neighbours in proportion. Zero for none.
pub(crate) fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return 0.0 };
    let at = last as f64 * share;
    let (low, high) = (values[at as usize], values[(at as usize + 1).min(last)]);
    low + (high - low) * at.fract()
}

pub(crate) fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}

/// The same of a slice; not a number for none.
pub(crate) fn mean_of(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// A mean and where it lies with 95 % confidence, by Student's t.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub mean: f64,
    pub low: f64,
    pub high: f64,
    /// Values, or pairs of them.
    pub count: usize,
}

/// What an interval of differences says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Lower,
    Higher,
    /// Zero lies within it.
    NotDistinguishable,
}

impl Interval {
    pub fn verdict(&self) -> Verdict {
        if self.high < 0.0 {
            Verdict::Lower
        } else if self.low > 0.0 {
            Verdict::Higher
        } else {
            Verdict::NotDistinguishable
        }
    }

    /// Of values; none for fewer than two, which say nothing about how they scatter.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        if count < 2 {
            return None;
        }
        let (mean, deviation) = spread(values);
        let half = t_975(count as f64 - 1.0) * deviation / (count as f64).sqrt();
        Some(Self { mean, low: mean - half, high: mean + half, count })
    }

    /// Of the difference of two means that have nothing to do with each other (Welch).
    pub fn of_difference(one: &[f64], other: &[f64]) -> Option<Self> {
        if one.len() < 2 || other.len() < 2 {
            return None;
        }
        let ((a, da), (b, db)) = (spread(one), spread(other));
        let (na, nb) = (one.len() as f64, other.len() as f64);
        let (va, vb) = (da * da / na, db * db / nb);
        let degrees = if va + vb > 0.0 {
            (va + vb).powi(2) / (va * va / (na - 1.0) + vb * vb / (nb - 1.0))
        } else {
            na + nb - 2.0
        };
        let (mean, half) = (b - a, t_975(degrees) * (va + vb).sqrt());
        Some(Self { mean, low: mean - half, high: mean + half, count: one.len().min(other.len()) })
    }
}

/// Mean and standard deviation of a sample.
fn spread(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = mean_of(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0)).sqrt())
}

/// The 97.5 % quantile of Student's t.
fn t_975(degrees: f64) -> f64 {
    const TABLE: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    student(&TABLE, 1.959_964, degrees)
}

/// The 99.75 % quantile: intervals of ten values that all hold with 95 % confidence.
pub(crate) fn t_9975(degrees: f64) -> f64 {
    const TABLE: [f64; 10] = [127.321, 14.089, 7.453, 5.598, 4.773, 4.317, 4.029, 3.833, 3.690, 3.581];
    student(&TABLE, 2.807_034, degrees)
}

/// A quantile of Student's t: tabled where it is steep, expanded around the normal one, `z`, beyond.
fn student(table: &[f64], z: f64, degrees: f64) -> f64 {
    let whole = degrees.max(1.0);
    // Downwards: a wider interval is the honest error.
    if let Some(value) = table.get(whole as usize - 1) {
        return *value;
    }
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + first / whole + second / whole.powi(2) + third / whole.powi(3)
}

/// Where a curve that rises and flattens bends most: the point farthest above the straight line from its first to its
/// last. None for fewer than three points, or where nothing bends.
pub fn knee(points: &[(f64, f64)]) -> Option<f64> {
    let ((x0, y0), (x1, y1)) = (*points.first()?, *points.last()?);
    let highest = points.iter().map(|(_, y)| *y).fold(f64::MIN, f64::max);
    if points.len() < 3 || x1 <= x0 || highest <= y0 {
        return None;
    }
    let above = |(x, y): &(f64, f64)| {
        let line = y0 + (y1 - y0) * (x - x0) / (x1 - x0);
        (y - line) / (highest - y0)
    };
    // Less than a twentieth of the climb is no bend, nor what goes on at more than a third of its slope.
    let (point, height) =
        points.iter().map(|point| (point.0, above(point))).max_by(|one, other| one.1.total_cmp(&other.1))?;
    let (_, at) = *points.iter().find(|(x, _)| *x == point)?;
    let (before, after) = ((at - y0) / (point - x0), (y1 - at) / (x1 - point));
    (height > 0.05 && after < before / 3.0).then_some(point)
}

/// The last level up to which everything is fine, none when the first is not.
pub fn holds_to(levels: impl IntoIterator<Item = (usize, bool)>) -> Option<usize> {
    levels.into_iter().take_while(|(_, fine)| *fine).last().map(|(level, _)| level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_neighbours() {
        assert_eq!(percentile(&mut [4.0, 1.0, 2.0, 3.0], 0.5), 2.5);
        assert_eq!(percentile(&mut [1.0, 2.0], 0.95), 1.95);
        assert_eq!((percentile(&mut [7.0], 0.95), percentile(&mut [], 0.5)), (7.0, 0.0));
    }

    #[test]
    fn intervals_are_those_of_the_textbook() {
        // Mean 5, deviation 1.5811, four degrees of freedom: 5 ± 2.776 * 1.5811 / sqrt(5).
        let interval = Interval::of(&[3.0, 4.0, 5.0, 6.0, 7.0]).unwrap();
        assert!((interval.mean - 5.0).abs() < 1e-9 && (interval.high - 6.963).abs() < 1e-3, "{interval:?}");
        assert_eq!(interval.verdict(), Verdict::Higher);
        assert_eq!(Interval::of(&[-1.0, 1.0, 0.5]).unwrap().verdict(), Verdict::NotDistinguishable);
        assert_eq!(Interval::of(&[-2.0, -2.1, -1.9]).unwrap().verdict(), Verdict::Lower);
        assert_eq!((Interval::of(&[1.0]), Interval::of(&[])), (None, None));
        for (degrees, expected) in [(1.0, 12.706), (10.0, 2.228), (11.0, 2.201), (30.0, 2.042), (1e6, 1.960)]
        {
            assert!((t_975(degrees) - expected).abs() < 2e-3, "{degrees}: {}", t_975(degrees));
        }
        for (degrees, expected) in [(10.0, 3.581), (11.0, 3.497), (30.0, 3.030), (1e6, 2.807)] {
            assert!((t_9975(degrees) - expected).abs() < 2e-2, "{degrees}: {}", t_9975(degrees));
        }
    }

    #[test]
    fn differences_of_independent_means() {
        let (a, b) = ([10.0, 11.0, 9.0, 10.0], [20.0, 21.0, 19.0, 20.0]);
        let interval = Interval::of_difference(&a, &b).unwrap();
        assert!((interval.mean - 10.0).abs() < 1e-9 && interval.verdict() == Verdict::Higher, "{interval:?}");
        // Six degrees of freedom, standard error 0.5774: ± 1.413.
        assert!((interval.high - 11.413).abs() < 1e-2, "{interval:?}");
        assert_eq!(
            Interval::of_difference(&a, &[9.0, 12.0, 10.0]).unwrap().verdict(),
            Verdict::NotDistinguishable
        );
        assert_eq!(Interval::of_difference(&a, &[1.0]), None);
        assert_eq!(Interval::of_difference(&[1.0, 1.0], &[1.0, 1.0]).unwrap().mean, 0.0);
    }

    #[test]
    fn curves_bend_where_they_bend() {
        let flattening = [(10.0, 100.0), (20.0, 200.0), (30.0, 300.0), (40.0, 310.0), (50.0, 315.0)];
        assert_eq!(knee(&flattening), Some(30.0));
        let straight = [(10.0, 100.0), (20.0, 200.0), (30.0, 300.0)];
        assert_eq!((knee(&straight), knee(&straight[..2]), knee(&[])), (None, None, None));
        let bent = [(60.0, 2147.0), (80.0, 2543.0), (120.0, 2643.0), (180.0, 3434.0)];
        assert_eq!(knee(&bent), None, "it goes on rising");
        let falling = [(10.0, 100.0), (20.0, 200.0), (30.0, 150.0), (40.0, 100.0)];
        assert_eq!(knee(&falling), Some(20.0));
        assert_eq!(holds_to([(60, true), (80, true), (100, false), (120, true)]), Some(80));
        assert_eq!((holds_to([(60, false)]), holds_to([])), (None, None));
    }
}
