//! What conversations are about: long documents that many of them share, and questions about them.

mod remote;
mod words;

use std::path::Path;

use anyhow::{Context, ensure};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use self::words::{CLOSINGS, FIELDS, Field, OPENINGS, QUALITIES, VERBS};

/// A document and what it is called in lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub topic: String,
    pub text: String,
}

/// The pool that conversations start from.
#[derive(Clone, Debug)]
pub struct Corpus {
    pub documents: Vec<Document>,
}

impl Corpus {
    /// Made-up technical text, equal for equal seeds: `count` documents of about so many words each.
    pub fn synthetic(seed: u64, count: usize, words: (usize, usize)) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let document = |n: usize, random: &mut StdRng| {
            let field = &FIELDS[n % FIELDS.len()];
            let wanted = random.random_range(words.0..=words.1.max(words.0));
            // Documents on one topic are told apart from their first words on.
            let part = n / FIELDS.len() + 1;
            let topic =
                if part > 1 { format!("{}, part {part}", field.topic) } else { field.topic.to_owned() };
            let mut text = format!("# On {topic}\n\n");
            let mut count = 4;
            while count < wanted {
                let sentence = sentence(field, random);
                count += sentence.split(' ').count();
                text.push_str(&sentence);
                text.push_str(if random.random_bool(0.15) { "\n\n" } else { " " });
            }
            Document { topic, text: text.trim_end().to_owned() }
        };
        Self { documents: (0..count).map(|n| document(n, &mut random)).collect() }
    }

    /// Every text file of a directory (.txt, .md), in the order of their names; the name is the topic.
    pub fn read(dir: &Path) -> anyhow::Result<Self> {
        let at = || format!("corpus {}", dir.display());
        let mut paths: Vec<_> = std::fs::read_dir(dir)
            .with_context(at)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|kind| kind == "txt" || kind == "md"))
            .collect();
        paths.sort();
        let read = |path: &std::path::PathBuf| -> anyhow::Result<Document> {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            let topic = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            Ok(Document { topic, text })
        };
        let documents: Vec<Document> = paths.iter().map(read).collect::<anyhow::Result<_>>()?;
        ensure!(!documents.is_empty(), "{}: no .txt or .md file, expected one or more", at());
        Ok(Self { documents })
    }

    /// A directory, or `http(s)://BUCKET.HOST/PREFIX` of a store that lists its objects as S3 does.
    pub async fn open(place: &str) -> anyhow::Result<Self> {
        if place.starts_with("http://") || place.starts_with("https://") {
            remote::fetch(place).await
        } else {
            Self::read(Path::new(place))
        }
    }
}

/// About so many words that nobody else has: equal for equal seeds.
pub fn own_text(seed: u64, wanted: usize) -> String {
    let mut random = StdRng::seed_from_u64(seed);
    let field = FIELDS.choose(&mut random).unwrap_or(&FIELDS[0]);
    // The first words tell texts apart, so that nothing of them is shared.
    let mut text = format!("Case {seed:x}:");
    let mut count = 2;
    while count < wanted {
        let sentence = sentence(field, &mut random);
        count += sentence.split(' ').count();
        text.push(' ');
        text.push_str(&sentence);
    }
    text
}

fn sentence(field: &Field, random: &mut StdRng) -> String {
    let pick = |from: &[&'static str], random: &mut StdRng| from.choose(random).copied().unwrap_or_default();
    let [one, other] = [pick(&field.things, random), pick(&field.things, random)];
    let (verb, quality) = (pick(&VERBS, random), pick(&QUALITIES, random));
    match random.random_range(0..3) {
        0 => format!("{} the {one} {verb} {quality} {other}.", pick(&OPENINGS, random)),
        1 => format!("The {one} {verb} {quality} {other}, {}.", pick(&CLOSINGS, random)),
        _ => {
            let third = pick(&field.things, random);
            format!("Where the {one} {verb} the {other}, {quality} {third} is found first.")
        }
    }
}

/// The first question of a conversation: the document, and what is wanted of it.
pub fn opening(document: &Document) -> String {
    format!(
        "{}\n\nExplain the text above to an engineer who is new to {}, and elaborate on what it leaves out.",
        document.text, document.topic
    )
}

/// The next question where no model writes it: made of words the last answer used.
pub fn follow_up(answer: &str, random: &mut StdRng) -> String {
    let words: Vec<&str> = answer
        .split(|letter: char| !letter.is_alphanumeric())
        .filter(|word| word.len() > 5)
        .take(400)
        .collect();
    let mut pick = || words.choose(random).copied().unwrap_or("that").to_lowercase();
    let (one, other) = (pick(), pick());
    let forms = [
        format!("You mention {one}. How does it relate to {other}?"),
        format!("What goes wrong first when {one} fails, and what would you measure?"),
        format!("Give a worked example with numbers for {one} and {other}."),
        format!("Which assumption about {one} is weakest, and why?"),
        format!("How would you explain {one} to somebody who only knows {other}?"),
    ];
    forms.choose(random).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_their_seed_and_of_the_length_asked_for() {
        let corpus = Corpus::synthetic(7, 12, (2500, 2900));
        assert_eq!(corpus.documents, Corpus::synthetic(7, 12, (2500, 2900)).documents);
        assert_ne!(corpus.documents, Corpus::synthetic(8, 12, (2500, 2900)).documents);
        for document in &corpus.documents {
            let words = document.text.split_whitespace().count();
            assert!((2400..3000).contains(&words), "{}: {words} words", document.topic);
        }
        let topics: std::collections::BTreeSet<&str> =
            corpus.documents.iter().map(|document| document.topic.as_str()).collect();
        assert_eq!(topics.len(), 12);
        assert!(opening(&corpus.documents[0]).contains("new to log-structured storage"));
    }

    #[test]
    fn questions_use_the_answers_words() {
        let mut random = StdRng::seed_from_u64(1);
        let asked = follow_up("The scheduler postpones eviction until pressure subsides.", &mut random);
        assert!(
            ["scheduler", "postpones", "eviction", "pressure", "subsides"]
                .iter()
                .any(|word| asked.contains(word))
        );
        assert!(!follow_up("", &mut random).is_empty());
    }

    #[test]
    fn a_directory_of_texts_is_a_corpus() {
        let dir = std::env::temp_dir().join(format!("kvlane-corpus-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let refused = Corpus::read(&dir).unwrap_err().to_string();
        assert!(refused.contains("no .txt or .md file"), "{refused}");
        std::fs::write(dir.join("b.md"), "second").unwrap();
        std::fs::write(dir.join("a.txt"), "first").unwrap();
        std::fs::write(dir.join("c.bin"), [255]).unwrap();
        let corpus = Corpus::read(&dir).unwrap();
        let found: Vec<(&str, &str)> =
            corpus.documents.iter().map(|one| (one.topic.as_str(), one.text.as_str())).collect();
        assert_eq!(found, [("a", "first"), ("b", "second")]);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
