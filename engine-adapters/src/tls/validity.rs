//! When a certificate ends. That one field is all that is read of it here; trust is rustls' business.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// Seconds since 1970 after which the certificate is not valid; none when it cannot be told.
pub fn not_after(certificate: &[u8]) -> Option<i64> {
    let (mut certificate, _) = take(certificate, &[SEQUENCE])?;
    let mut signed = next(&mut certificate, &[SEQUENCE])?;
    // The version may be left out.
    let _ = next(&mut signed, &[VERSION]);
    let _serial = next(&mut signed, &[INTEGER])?;
    let _algorithm = next(&mut signed, &[SEQUENCE])?;
    let _issuer = next(&mut signed, &[SEQUENCE])?;
    let mut validity = next(&mut signed, &[SEQUENCE])?;
    let _not_before = next(&mut validity, &[UTC_TIME, GENERALIZED_TIME])?;
    let tag = *validity.first()?;
    let time = std::str::from_utf8(next(&mut validity, &[UTC_TIME, GENERALIZED_TIME])?).ok()?;
    // Two digits stand for 1950 to 2049.
    let time = match tag {
        UTC_TIME if time.as_bytes().first()? >= &b'5' => format!("19{time}"),
        UTC_TIME => format!("20{time}"),
        _ => time.to_owned(),
    };
    let time = DateTime::strptime("%Y%m%d%H%M%SZ", time).ok()?;
    Some(TimeZone::UTC.to_timestamp(time).ok()?.as_second())
}

/// The content of the first element, and what is behind it; none when it is no such element.
fn take<'d>(der: &'d [u8], tags: &[u8]) -> Option<(&'d [u8], &'d [u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    if !tags.contains(tag) {
        return None;
    }
    let (length, rest) = match usize::from(*first) {
        short @ 0..=0x7f => (short, rest),
        // A certificate of more than 16 MiB is none.
        long @ 0x81..=0x83 => {
            let (length, rest) = rest.split_at_checked(long & 0x7f)?;
            (length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

/// The same, moving on behind it.
fn next<'d>(der: &mut &'d [u8], tags: &[u8]) -> Option<&'d [u8]> {
    let (content, rest) = take(der, tags)?;
    *der = rest;
    Some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificates_end_is_found_and_nonsense_has_none() {
        let key = rcgen::KeyPair::generate().unwrap();
        let ending = |year| {
            let mut params = rcgen::CertificateParams::new(vec!["a".to_owned()]).unwrap();
            params.not_after = rcgen::date_time_ymd(year, 3, 1);
            params.self_signed(&key).unwrap().der().to_vec()
        };
        // Before 2050 the year has two digits, from then on four.
        assert_eq!(not_after(&ending(2030)), Some(1_898_553_600));
        assert_eq!(not_after(&ending(2060)), Some(2_845_324_800));
        let whole = ending(2030);
        for end in 0..whole.len() {
            assert_eq!(not_after(&whole[..end]), None, "cut at {end}");
        }
        for at in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[at] ^= 0xff;
            let _ = not_after(&wrong);
        }
    }
}
