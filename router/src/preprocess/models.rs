//! Where a model's tokenizer and template are found.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvlane_engine_adapters::engine_facts::ServedModel;
use kvlane_engine_adapters::model::{Model, ModelError};
use parking_lot::Mutex;

use super::Words;
use crate::config::ModelSettings;

/// Finds each model once: in the directories that were named, else where the engine says it loaded the model from, be
/// that a directory both can see or a repository in Hugging Face's local cache.
#[derive(Debug)]
pub struct ModelFinder {
    /// For every model that has none of its own.
    common: Option<PathBuf>,
    named: BTreeMap<String, PathBuf>,
    loaded: Mutex<BTreeMap<PathBuf, Option<Words>>>,
}

const TOKENIZER: &str = "tokenizer.json";

impl ModelFinder {
    /// Loads what was named, so that a wrong directory stops the start.
    pub fn new(settings: &ModelSettings) -> Result<Self, ModelError> {
        let pairs = settings.dirs.iter().filter_map(|pair| pair.split_once('='));
        let mut named: BTreeMap<String, PathBuf> =
            pairs.map(|(name, dir)| (name.to_owned(), PathBuf::from(dir))).collect();
        let mut common = settings.path.clone();
        if let (Some(name), Some(dir)) = (&settings.name, &settings.path) {
            named.insert(name.clone(), dir.clone());
            common = None;
        }
        let finder = Self { common, named, loaded: Mutex::default() };
        for dir in finder.named.values().chain(&finder.common) {
            let mut loaded = finder.loaded.lock();
            // Its number is what its tokens are cached under: one directory, one number.
            if !loaded.contains_key(dir) {
                let words = local(Model::load(dir)?, loaded.len());
                loaded.insert(dir.clone(), Some(words));
            }
        }
        Ok(finder)
    }

    /// Reads files: not to be called on an async thread. None when there is no tokenizer to be had here.
    pub fn find(&self, served: &ServedModel) -> Option<Words> {
        let root = served.root.as_deref().unwrap_or(&served.name);
        let dir = [&served.name, root].iter().find_map(|name| self.named.get(*name)).or(self.common.as_ref());
        let dir = dir.cloned().or_else(|| {
            [root, &served.name].into_iter().find_map(|root| {
                // The built-in model has no directory, and goes by its name here.
                if root == Model::EMBEDDED {
                    return Some(PathBuf::from(Model::EMBEDDED));
                }
                let dir = PathBuf::from(root);
                if dir.join(TOKENIZER).is_file() { Some(dir) } else { in_hub_cache(root) }
            })
        })?;
        let mut loaded = self.loaded.lock();
        let number = loaded.len();
        loaded.entry(dir.clone()).or_insert_with(|| load(&dir, number)).clone()
    }
}

fn load(dir: &Path, number: usize) -> Option<Words> {
    let model = if dir == Path::new(Model::EMBEDDED) { Model::embedded() } else { Model::load(dir) };
    match model {
        Ok(model) => Some(local(model, number)),
        Err(error) => {
            tracing::warn!(%error, "a model's tokenizer cannot be used");
            None
        }
    }
}

fn local(model: Model, number: usize) -> Words {
    Words::Local { model: Arc::new(model), id: number as u64 }
}

/// The current snapshot of `organisation/name` in Hugging Face's cache on this machine.
fn in_hub_cache(repository: &str) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let hub = variable("HF_HUB_CACHE")
        .or_else(|| Some(variable("HF_HOME")?.join("hub")))
        .or_else(|| Some(variable("HOME")?.join(".cache/huggingface/hub")))?;
    in_hub(&hub, repository)
}

fn in_hub(hub: &Path, repository: &str) -> Option<PathBuf> {
    let (organisation, name) = repository.split_once('/')?;
    // A name from outside becomes a path here: no steps upwards.
    if [organisation, name]
        .iter()
        .any(|part| part.is_empty() || part.contains(['/', '\\']) || part.starts_with('.'))
    {
        return None;
    }
    let repository = hub.join(format!("models--{organisation}--{name}"));
    let commit = std::fs::read_to_string(repository.join("refs/main")).ok()?;
    let commit = commit.trim();
    let dir = repository.join("snapshots").join(commit);
    (commit.chars().all(|c| c.is_ascii_alphanumeric()) && dir.join(TOKENIZER).is_file()).then_some(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(name: &str, root: &str) -> ServedModel {
        ServedModel { name: name.to_owned(), root: Some(root.to_owned()), parent: None }
    }

    #[test]
    fn models_are_found_where_engines_loaded_them() {
        let hub = tempfile::tempdir().unwrap();
        let snapshot = hub.path().join("models--org--name/snapshots/abc1");
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir_all(hub.path().join("models--org--name/refs")).unwrap();
        std::fs::write(hub.path().join("models--org--name/refs/main"), "abc1\n").unwrap();
        std::fs::write(snapshot.join(TOKENIZER), "{}").unwrap();
        assert_eq!(in_hub(hub.path(), "org/name"), Some(snapshot));
        for other in ["org/other", "name", "../name", "org/..", "org/a/b"] {
            assert_eq!(in_hub(hub.path(), other), None, "{other}");
        }

        let mut settings = crate::config::Config::defaults().unwrap().model;
        let finder = ModelFinder::new(&settings).unwrap();
        assert!(finder.find(&served("chat", "/nowhere")).is_none());
        let Some(Words::Local { model, id }) = finder.find(&served("chat", Model::EMBEDDED)) else {
            panic!()
        };
        assert_eq!((model.name.as_str(), id), (Model::EMBEDDED, 0));
        assert!(finder.find(&served("broken", hub.path().to_str().unwrap())).is_none());
        settings.path = Some("/nowhere".into());
        let error = ModelFinder::new(&settings).unwrap_err().to_string();
        assert!(error.contains("/nowhere") && error.contains(TOKENIZER), "{error}");
    }
}
