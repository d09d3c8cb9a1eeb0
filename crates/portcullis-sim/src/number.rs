//! Formats numbers for a terminal and for a page.

/// A count with its thousands separated.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with about three significant digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 1000.0 => count(value.round() as u64),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        size if size >= 0.001 => format!("{value:.4}"),
        _ => format!("{value:.1e}"),
    }
}

/// A number with all its digits: in plain form, or with an exponent if that avoids a row of zeros.
pub fn exact(value: f64) -> String {
    let (plain, exponent) = (value.to_string(), format!("{value:e}"));
    const ROOM: usize = 6;
    if plain.len() <= exponent.len().max(ROOM) { plain } else { exponent }
}

/// A share, as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// A rate in Gb/s.
pub fn gbps(rate: f64) -> String {
    if rate < 1.0 { format!("{rate:.2}") } else { format!("{rate:.1}") }
}

/// A range of rates in Gb/s, or one rate if `least` is not given.
pub fn gbps_range(least: Option<f64>, most: f64) -> String {
    range(least.map(gbps), gbps(most))
}

/// A range of shares, as percentages.
pub fn percent_range(least: Option<f64>, most: f64) -> String {
    range(least.map(low_percent), percent(most))
}

/// The lower end of a range of shares, without the percent sign, which follows the upper end.
pub fn low_percent(share: f64) -> String {
    format!("{:.0}", 100.0 * share)
}

/// A rate in thousands.
pub fn thousands(rate: f64) -> String {
    number(rate / 1000.0)
}

/// A range, or one number if both ends print the same.
fn range(least: Option<String>, most: String) -> String {
    match least {
        Some(least) if most.trim_end_matches(" %") != least => format!("{least}–{most}"),
        _ => most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([0, 12, 999, 1000, 28045, 1_234_567].map(count), ["0", "12", "999", "1,000", "28,045", "1,234,567"]);
    }

    #[test]
    fn no_digit_is_lost_and_none_is_idle() {
        let all = [0.0, 0.0625, 1000.0, 0.5, 1e-300, 5e-324, 0.1 + 0.2, 123.456].map(exact);
        assert_eq!(all, ["0", "0.0625", "1000", "0.5", "1e-300", "5e-324", "0.30000000000000004", "123.456"]);
    }

    #[test]
    fn small_numbers_keep_their_digits() {
        assert_eq!(
            [0.0, 0.00004, 0.0123, 1.5, 42.25, 123.4, 4567.8].map(number),
            ["0", "4.0e-5", "0.0123", "1.50", "42.2", "123", "4,568"]
        );
    }

    #[test]
    fn a_range_is_seen_to_be_one() {
        assert_eq!(gbps_range(Some(0.0062), 9.43), "0.01–9.4");
        assert_eq!(gbps_range(Some(2.25), 9.43), "2.2–9.4");
        assert_eq!([gbps_range(None, 9.43), gbps_range(Some(9.42), 9.43)], ["9.4", "9.4"]);
        assert_eq!(percent_range(Some(0.372), 0.389), "37–39 %");
        assert_eq!([percent_range(None, 0.389), percent_range(Some(0.391), 0.389)], ["39 %", "39 %"]);
    }
}
