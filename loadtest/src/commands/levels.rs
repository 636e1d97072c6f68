//! Lists and ranges of numbers on the command line.

use anyhow::{Context, ensure};

/// In steps of so many, unless it says otherwise.
const STEP: usize = 20;
const MOST_LEVELS: usize = 1000;

/// `60,80`, `60..180` or `10..50:10`, or several of them.
pub(crate) fn levels(text: &str, name: &str) -> anyhow::Result<Vec<usize>> {
    let expected = || format!("{name} is {text:?}, expected numbers such as 60,80 or 60..180 or 10..50:10");
    let number = |text: &str| text.trim().parse::<usize>().with_context(expected);
    let mut levels = Vec::new();
    for part in text.split(',') {
        match part.split_once("..") {
            None => levels.push(number(part)?),
            Some((from, to)) => {
                let (to, step) = to.split_once(':').map_or((to, None), |(to, step)| (to, Some(step)));
                let step = step.map_or(Ok(STEP), number)?;
                let (from, to) = (number(from)?, number(to)?);
                ensure!(from <= to && step > 0, expected());
                levels.extend((from..=to).step_by(step).take(MOST_LEVELS + 1));
            }
        }
    }
    ensure!(levels.iter().all(|level| *level > 0), expected());
    ensure!(levels.len() <= MOST_LEVELS, "{name} has more than {MOST_LEVELS} levels");
    let distinct: std::collections::BTreeSet<&usize> = levels.iter().collect();
    ensure!(distinct.len() == levels.len(), "{name} is {text:?}, which has a level twice");
    Ok(levels)
}

/// `3-5`, or `4` for both.
pub(crate) fn range(text: &str, name: &str) -> anyhow::Result<(usize, usize)> {
    let expected = || format!("{name} is {text:?}, expected FEW-MANY such as 3-5");
    let (few, many) = text.split_once('-').unwrap_or((text, text));
    let few: usize = few.trim().parse().with_context(expected)?;
    let many: usize = many.trim().parse().with_context(expected)?;
    ensure!(few > 0 && few <= many && many <= 10_000_000, expected());
    Ok((few, many))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_lists_and_ranges() {
        assert_eq!(levels("60..180", "--levels").unwrap(), [60, 80, 100, 120, 140, 160, 180]);
        assert_eq!(levels("5, 10..20:5", "--levels").unwrap(), [5, 10, 15, 20]);
        for wrong in ["", "a", "3..", "9..1", "0", "1..5:0", "1..1000000000:1", "5,5"] {
            assert!(levels(wrong, "--levels").unwrap_err().to_string().starts_with("--levels "), "{wrong}");
        }
        assert_eq!((range("3-5", "--turns").unwrap(), range("4", "--turns").unwrap()), ((3, 5), (4, 4)));
        assert!(range("5-3", "--turns").is_err() && range("0", "--turns").is_err());
    }
}
