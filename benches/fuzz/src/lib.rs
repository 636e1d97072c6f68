//! What several fuzz targets need.

/// Bytes, and the same bytes in pieces. The first byte says how many lengths follow (seven at most), and pieces of those
/// lengths are cut off the rest, over and over. None when there is not enough to say.
pub fn cut(input: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (count, rest) = input.split_first()?;
    let (lengths, whole) = rest.split_at_checked(usize::from(count % 8))?;
    let mut pieces = Vec::new();
    let mut left = whole;
    for length in lengths.iter().cycle() {
        if left.is_empty() {
            break;
        }
        let (piece, behind) = left.split_at((usize::from(*length) + 1).min(left.len()));
        pieces.push(piece);
        left = behind;
    }
    if lengths.is_empty() {
        pieces.push(whole);
    }
    Some((whole, pieces))
}
