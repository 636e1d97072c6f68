//! `kvlane-load compare`: two runs, and whether they differ.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use kvlane_loadtest::compare::{self, Side, USUAL};
use kvlane_loadtest::live;
use kvlane_loadtest::results::{Results, Set, first_difference};

#[derive(Debug, clap::Args)]
pub(crate) struct Compare {
    /// A file of `sweep`, `simulate --json` or `run --json`
    one: PathBuf,
    /// The other; without it, modes of the first are compared
    other: Option<PathBuf>,
    /// Two modes, ONE,OTHER [default: the same modes of both files; of one file its baseline and each other]
    #[arg(long, value_delimiter = ',', value_name = "ONE,OTHER")]
    modes: Vec<String>,
    /// Figures to compare
    #[arg(long, value_delimiter = ',', default_values = USUAL)]
    figures: Vec<String>,
    /// Prints Markdown
    #[arg(long)]
    markdown: bool,
}

/// A file, and whether its repeats are parts of one run rather than runs.
struct Read {
    results: Results,
    parts: bool,
}

fn read(path: &Path) -> anyhow::Result<Read> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    if text.contains(live::RUN_SCHEMA) {
        let run = live::Written::parse(&text).with_context(|| path.display().to_string())?;
        return Ok(Read { results: run.as_results(), parts: true });
    }
    Ok(Read { results: Results::read(path)?, parts: false })
}

pub(crate) fn compare(arguments: &Compare) -> anyhow::Result<()> {
    let metrics = compare::metrics(&arguments.figures)?;
    let one = read(&arguments.one)?;
    let other = arguments.other.as_deref().map(read).transpose()?;
    let others = other.as_ref().map_or(&one.results, |other| &other.results);
    let mut all_pairs = !one.parts && !other.as_ref().is_some_and(|other| other.parts);
    if one.results.source != others.source {
        eprintln!("note: one is {}, the other {}", one.results.source.name(), others.source.name());
        all_pairs = false;
    }
    let names = (
        arguments.one.display().to_string(),
        arguments.other.as_ref().unwrap_or(&arguments.one).display().to_string(),
    );
    let mut compared = 0;
    let mut paired = false;
    for (set, beside) in sets(&one.results, others)? {
        let mut pairs = all_pairs;
        ensure!(
            set.levels_are == beside.levels_are,
            "levels are {} in one and {} in the other, which cannot be compared",
            set.levels_are,
            beside.levels_are
        );
        if let Some(path) =
            first_difference(&set.conditions["workload"], &beside.conditions["workload"], "workload")
        {
            eprintln!("note: the two did not ask the same: `{path}` differs");
            pairs = false;
        }
        for (mode, against) in modes(arguments, set, beside, other.is_none())? {
            let found =
                compare::compare(Side { set, mode }, Side { set: beside, mode: against }, &metrics, pairs);
            if found.is_empty() {
                continue;
            }
            compared += 1;
            paired |= pairs;
            let title = format!("{}: {mode} ({}) and {against} ({})", set.name, names.0, names.1);
            let table = compare::table(&title, ("one", "other"), &found);
            print!("{}", if arguments.markdown { table.markdown() } else { table.terminal() });
        }
    }
    let invalid = [&one.results, others].into_iter().flat_map(|of| &of.sets).flat_map(|set| &set.cells);
    let why = invalid.filter_map(|cell| cell.invalid.clone()).next();
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    ensure!(compared > 0, "nothing to compare: the two have no level and figure in common that count{why}");
    if paired {
        println!("\nchange is the other's over the one's; runs that began with one seed are paired");
    } else if one.parts {
        println!("\nintervals are from parts of each run (batch means): what drifts slowly is not in them");
    }
    println!("of twenty intervals one misses by chance; where there is a row for all levels, judge by it");
    Ok(())
}

/// Those of one name, or the only ones there are.
fn sets<'a>(one: &'a Results, other: &'a Results) -> anyhow::Result<Vec<(&'a Set, &'a Set)>> {
    if let ([set], [beside]) = (&one.sets[..], &other.sets[..]) {
        return Ok(vec![(set, beside)]);
    }
    let found: Vec<_> = one
        .sets
        .iter()
        .filter_map(|set| Some((set, other.sets.iter().find(|beside| beside.name == set.name)?)))
        .collect();
    ensure!(!found.is_empty(), "nothing to compare: the two files have no workload in common");
    Ok(found)
}

fn modes<'a>(
    arguments: &'a Compare,
    set: &'a Set,
    beside: &'a Set,
    same_file: bool,
) -> anyhow::Result<Vec<(&'a str, &'a str)>> {
    if !arguments.modes.is_empty() {
        let [one, other] = &arguments.modes[..] else {
            bail!("--modes is {}, expected two: ONE,OTHER", arguments.modes.join(","))
        };
        for (name, set) in [(one, set), (other, beside)] {
            let known = set.modes();
            ensure!(known.contains(&name.as_str()), "mode is {name}, expected one of {}", known.join(", "));
        }
        return Ok(vec![(one, other)]);
    }
    if same_file {
        let Some(baseline) = set.baseline() else { bail!("the file has no figures") };
        let others: Vec<_> =
            set.modes().into_iter().filter(|mode| *mode != baseline).map(|mode| (baseline, mode)).collect();
        ensure!(!others.is_empty(), "the file has one mode, {baseline}, expected a second file");
        return Ok(others);
    }
    let common: Vec<_> = set
        .modes()
        .into_iter()
        .filter(|mode| beside.modes().contains(mode))
        .map(|mode| (mode, mode))
        .collect();
    match (&common[..], &set.modes()[..], &beside.modes()[..]) {
        ([], [one], [other]) => Ok(vec![(one, other)]),
        ([], [], _) | ([], _, []) => {
            bail!("one of them has no figures to compare by: a trace, or a run that was interrupted")
        }
        ([], ..) => bail!("the two files have no mode in common, expected --modes ONE,OTHER"),
        _ => Ok(common),
    }
}
