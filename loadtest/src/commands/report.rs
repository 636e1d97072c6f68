//! `kvlane-load report`: a sweep as a page, tables, and reference lines.

use std::path::PathBuf;

use kvlane_loadtest::report;
use kvlane_loadtest::results::Results;

#[derive(Debug, clap::Args)]
pub(crate) struct Report {
    /// A file of `sweep` or of `simulate --json`
    file: PathBuf,
    /// Where everything goes: report.html, .md, .csv, .json, reference-rules.yml (Prometheus), reference-lines.json (Grafana)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Prints Markdown instead of tables for a terminal
    #[arg(long)]
    markdown: bool,
}

pub(crate) fn report(arguments: &Report) -> anyhow::Result<()> {
    let results = Results::read(&arguments.file)?;
    if let Some(dir) = &arguments.out {
        report::write_all(&results, dir)?.iter().for_each(|path| eprintln!("wrote {}", path.display()));
    }
    super::say(&if arguments.markdown { report::markdown(&results) } else { report::text(&results) });
    Ok(())
}
