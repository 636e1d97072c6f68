//! What a page says, what it compares with, and who may do what.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use kvlane_loadtest::http::Admin;
use kvlane_loadtest::live::{Book, Shown};
use kvlane_loadtest::web::{About, Administration, Baselines, Infrastructure, Play, Stage, Web};

use super::load_flags::Prepared;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PageFlags {
    /// The page's heading
    #[arg(long, env = "PAGE_TITLE", help_heading = "Page")]
    title: Option<String>,
    /// The line under it
    #[arg(long, env = "PAGE_SUBTITLE", help_heading = "Page")]
    subtitle: Option<String>,
    /// Where GPUs and hit rates are asked [default: the workers and the router themselves]
    #[arg(long, env = "PROMETHEUS_URL", value_name = "URL", help_heading = "Page")]
    prometheus_url: Option<String>,
    /// A sweep's file to compare with [default: the reference's recorded figures]
    #[arg(long, value_name = "FILE", help_heading = "Page")]
    baselines: Option<PathBuf>,
    /// The page can be looked at only
    #[arg(long, help_heading = "Page")]
    pub(crate) read_only: bool,
    /// Where live sweeps that are started on the page are kept [default: in memory only]
    #[arg(long, value_name = "DIR", help_heading = "Page")]
    sweeps_dir: Option<PathBuf>,
    /// Keeps figures of conversations and not what was said
    #[arg(long, help_heading = "Page")]
    no_texts: bool,
}

impl PageFlags {
    /// A page over a load that it starts and stops. Without an administration the router is not looked into.
    pub(crate) fn page(
        &self,
        prepared: Prepared,
        admin: Option<Admin>,
        concurrency: usize,
        speed: f64,
        note: Option<&str>,
    ) -> anyhow::Result<Web> {
        let shown = Arc::new(Shown::default());
        let plain = About::default();
        let about = About {
            title: self.title.clone().unwrap_or(plain.title),
            subtitle: self.subtitle.clone().unwrap_or(plain.subtitle),
            model: Some(prepared.endpoint.model.clone()),
            speed,
            note: note.map(str::to_owned),
            objective: prepared.objective,
        };
        let mut web = Web::watching(shown.clone(), about)?;
        web.router = admin.map(Administration::new).transpose()?;
        web.infrastructure = Infrastructure::new(self.prometheus_url.as_deref())?;
        web.baselines = Baselines::new(self.baselines.as_deref()).context("--baselines")?;
        web.read_only = self.read_only;
        web.book = Book::new(!self.no_texts);
        if let Some(folder) = &self.sweeps_dir {
            super::check_writable(&folder.join("kvlane-sweep"), "--sweeps-dir")?;
        }
        web.sweeps_dir.clone_from(&self.sweeps_dir);
        let play = Play {
            objective: prepared.objective,
            seed: prepared.seed(),
            concurrency,
            most: super::open_files().unwrap_or(usize::MAX),
            target: prepared.about(),
            conditions: prepared.conditions(),
            make: Box::new(move |seed, collector| prepared.load(seed, false, collector)),
        };
        web.stage = Some(Stage::new(play, shown, web.book.clone()));
        Ok(web)
    }
}
