//! Programs that are started beside this one, and stopped with it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::process::{Child, Command};

/// How long one may take to end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(5);
/// Lines of the log that are shown when one ended by itself.
const LAST_LINES: usize = 8;

/// What was started, by name, and where all of it writes. Whatever is left is killed when this goes; a terminal's Ctrl-C
/// reaches them by themselves, since they are of this process' group.
#[derive(Debug)]
pub struct Children {
    running: BTreeMap<String, Child>,
    /// Where the programs are; none for beside this one, or on the path.
    programs: Option<PathBuf>,
    log: PathBuf,
}

impl Children {
    /// `of` is what they are part of; the log is named after it.
    pub fn new(of: &str) -> Self {
        let log = std::env::temp_dir().join(format!("kvlane-{of}-{}.log", std::process::id()));
        Self { running: BTreeMap::new(), programs: None, log }
    }

    /// The same with programs of that directory.
    pub fn of_dir(of: &str, programs: &Path) -> Self {
        Self { programs: Some(programs.to_owned()), ..Self::new(of) }
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Starts `program` under a name of its own.
    pub fn start(&mut self, name: &str, program: &Path, arguments: &[String]) -> anyhow::Result<()> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.with_context(|| self.log.display().to_string())?;
        let path = match &self.programs {
            Some(dir) if program.components().count() == 1 => dir.join(program),
            _ => beside(program),
        };
        let child = Command::new(&path)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| {
                let program = program.display();
                format!("{program} cannot be started, expected it beside kvlane-load or on the path")
            })?;
        self.running.insert(name.to_owned(), child);
        Ok(())
    }

    /// Fails when one of them is gone.
    pub fn check(&mut self) -> anyhow::Result<()> {
        for (name, child) in &mut self.running {
            if let Some(status) = child.try_wait()? {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
                bail!("{name} ended with {status}; the end of {}:\n{}", self.log.display(), last.join("\n"));
            }
        }
        Ok(())
    }

    fn take(&mut self, name: &str) -> anyhow::Result<Child> {
        self.running.remove(name).with_context(|| format!("{name} does not run"))
    }

    /// As kill -9 does; it is gone when this returns.
    pub async fn kill(&mut self, name: &str) -> anyhow::Result<()> {
        let mut child = self.take(name)?;
        child.kill().await.with_context(|| name.to_owned())
    }

    /// Asks it to end, and waits until it has.
    pub async fn terminate(&mut self, name: &str, patience: Duration) -> anyhow::Result<ExitStatus> {
        let mut child = self.take(name)?;
        signal(&child).await;
        let late = || format!("{name} still runs {patience:?} after it was asked to end");
        Ok(tokio::time::timeout(patience, child.wait()).await.with_context(late)??)
    }

    /// Asks all of them to end, and makes them.
    pub async fn stop(&mut self) {
        for child in self.running.values() {
            signal(child).await;
        }
        for child in self.running.values_mut() {
            if tokio::time::timeout(PATIENCE, child.wait()).await.is_err() {
                let _ = child.kill().await;
            }
        }
        self.running.clear();
    }
}

async fn signal(child: &Child) {
    if let Some(id) = child.id() {
        let _ = Command::new("kill").args(["-TERM", &id.to_string()]).status().await;
    }
}

/// The program of a name that was built with this one, or whichever is found.
pub fn beside(name: &Path) -> PathBuf {
    let here = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_path_buf));
    here.map(|dir| dir.join(name)).filter(|path| path.exists()).unwrap_or_else(|| name.into())
}
