//! Least squares over pieces.

use kvlane_engine_adapters::sim::Calibration;

use super::Step;

const CONSTANTS: usize = 6;
/// In the calibration's units, in this order.
type Constants = [f64; CONSTANTS];
const WEIGHTS: usize = 0;
const CACHED: usize = 1;
const NEW: usize = 2;
const PAIRS: usize = 3;
/// Launching, on top and at least.
const EAGER: usize = 4;
const LAUNCH: usize = 5;

const ROUNDS: usize = 60;
/// A step that is further off than so many times the usual was disturbed, and counts the less.
const DISTURBED: f64 = 3.0;

/// The best of a few beginnings: assignments can settle in more than one way.
pub(super) fn fit(sizes: &Calibration, steps: &[Step]) -> Calibration {
    let beginnings = beginnings(steps);
    let fitted = beginnings.into_iter().map(|constants| settle(sizes, steps, constants));
    let best = fitted.min_by(|(_, one), (_, other)| one.total_cmp(other));
    best.map_or_else(|| sizes.clone(), |(calibration, _)| calibration)
}

/// From the quickest steps of each kind; with and without the least that launching takes.
fn beginnings(steps: &[Step]) -> Vec<Constants> {
    let quick = |values: &mut Vec<f64>| {
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len() / 20).copied().unwrap_or(0.0)
    };
    let mut all: Vec<f64> = steps.iter().map(|step| step.ms).collect();
    let mut launched: Vec<f64> = steps.iter().filter(|step| step.eager).map(|step| step.ms).collect();
    let most = steps.iter().map(|step| step.work.prefill).max().unwrap_or(0);
    let large = steps.iter().filter(|step| most > 0 && step.work.prefill * 2 >= most);
    let mut per_token: Vec<f64> = large.map(|step| step.ms * 1e3 / step.work.prefill as f64).collect();
    let (weights, launch, new) = (quick(&mut all), quick(&mut launched), quick(&mut per_token));
    let constants = |launch: f64| [weights, 0.0, new, 0.0, 0.0, launch];
    vec![constants(0.0), constants(launch)]
}

/// Assigns and fits until nothing moves; with the loss of what it came to.
fn settle(sizes: &Calibration, steps: &[Step], mut constants: Constants) -> (Calibration, f64) {
    let mut best: Option<(Calibration, f64)> = None;
    for _ in 0..ROUNDS {
        let calibration = with(sizes, constants);
        let errors: Vec<f64> = steps.iter().map(|step| step.error(&calibration)).collect();
        let usual = DISTURBED * median(errors.iter().map(|error| error.abs()).collect()).max(1e-4);
        let loss: f64 = errors.iter().map(|error| error.abs().min(usual) * error.abs()).sum();
        if best.as_ref().is_none_or(|(_, least)| loss < *least * (1.0 - 1e-9)) {
            best = Some((calibration.clone(), loss));
        }
        let rows = steps.iter().zip(&errors).map(|(step, error)| {
            let longer = step.ms.max(step.modelled(&calibration));
            let weight = (usual / error.abs()).min(1.0) / (longer * longer);
            Row { columns: columns(&calibration, step), ms: step.ms, weight }
        });
        let next = least_squares(&rows.collect::<Vec<_>>(), &constants);
        let moved =
            next.iter().zip(&constants).any(|(next, last)| (next - last).abs() > 1e-6 * last.abs().max(1e-6));
        constants = next;
        if !moved {
            break;
        }
    }
    best.unwrap_or_else(|| (with(sizes, constants), f64::INFINITY))
}

fn with(sizes: &Calibration, constants: Constants) -> Calibration {
    Calibration {
        weights_ms: constants[WEIGHTS],
        kv_ns_per_token: constants[CACHED],
        prefill_us_per_token: constants[NEW],
        attention_ps_per_pair: constants[PAIRS],
        eager_ms: constants[EAGER],
        launch_ms: constants[LAUNCH],
        ..sizes.clone()
    }
}

struct Row {
    columns: Constants,
    ms: f64,
    weight: f64,
}

/// What a step is charged for, as the calibration stands: so much of each constant.
fn columns(calibration: &Calibration, step: &Step) -> Constants {
    let mut columns = [0.0; CONSTANTS];
    let work = &step.work;
    let captured = calibration.captured(work);
    let free = Calibration { launch_ms: 0.0, ..calibration.clone() };
    if !captured && free.step_ms(work) < calibration.launch_ms {
        columns[LAUNCH] = 1.0;
        return columns;
    }
    let new = work.prefill as f64 * 1e-3;
    if calibration.roofline {
        let all = new + work.batch as f64 * 1e-3;
        if calibration.prefill_us_per_token * all > calibration.weights_ms {
            columns[NEW] = all;
        } else {
            columns[WEIGHTS] = 1.0;
        }
    } else {
        (columns[WEIGHTS], columns[NEW]) = (1.0, new);
    }
    columns[CACHED] = work.context as f64 * 1e-6;
    columns[PAIRS] = if calibration.roofline { work.pairs as f64 * 1e-9 } else { 0.0 };
    columns[EAGER] = if captured { 0.0 } else { 1.0 };
    columns
}

/// Constants of at least nothing. One that no step is charged for stays as it was.
fn least_squares(rows: &[Row], before: &Constants) -> Constants {
    let mut squares = [[0.0; CONSTANTS]; CONSTANTS];
    let mut products = [0.0; CONSTANTS];
    for row in rows {
        for (one, (product, line)) in row.columns.iter().zip(products.iter_mut().zip(&mut squares)) {
            *product += row.weight * one * row.ms;
            line.iter_mut().zip(&row.columns).for_each(|(square, other)| *square += row.weight * one * other);
        }
    }
    let mut zero = [false; CONSTANTS];
    loop {
        let mut matrix = squares;
        let mut right = products;
        for at in 0..CONSTANTS {
            // A little pull towards what it was, so that what cannot be told apart stays apart.
            let pull = 1e-9 * squares[at][at] + f64::MIN_POSITIVE;
            matrix[at][at] += pull;
            right[at] += pull * before[at];
            if zero[at] {
                matrix[at] = [0.0; CONSTANTS];
                matrix.iter_mut().for_each(|line| line[at] = 0.0);
                (matrix[at][at], right[at]) = (1.0, 0.0);
            }
        }
        let found = solve(matrix, right);
        let lowest = (0..CONSTANTS).min_by(|one, other| found[*one].total_cmp(&found[*other]));
        match lowest {
            Some(at) if found[at] < 0.0 => zero[at] = true,
            _ => return found,
        }
    }
}

/// Gauss, the largest in front. What is left without a pivot is 0.
fn solve(mut matrix: [[f64; CONSTANTS]; CONSTANTS], mut right: Constants) -> Constants {
    for at in 0..CONSTANTS {
        let largest =
            (at..CONSTANTS).max_by(|one, other| matrix[*one][at].abs().total_cmp(&matrix[*other][at].abs()));
        let largest = largest.unwrap_or(at);
        matrix.swap(at, largest);
        right.swap(at, largest);
        let pivot = matrix[at][at];
        if pivot == 0.0 {
            continue;
        }
        let line = matrix[at];
        for below in at + 1..CONSTANTS {
            let share = matrix[below][at] / pivot;
            matrix[below].iter_mut().zip(line).for_each(|(value, above)| *value -= share * above);
            right[below] -= share * right[at];
        }
    }
    let mut found = [0.0; CONSTANTS];
    for at in (0..CONSTANTS).rev() {
        let rest: f64 = (at + 1..CONSTANTS).map(|column| matrix[at][column] * found[column]).sum();
        found[at] = if matrix[at][at] == 0.0 { 0.0 } else { (right[at] - rest) / matrix[at][at] };
    }
    found
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
