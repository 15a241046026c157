//! Formats numbers for people.

/// Formats a share in per cent.
pub fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    format!("{:.1} %", 100.0 * part as f64 / whole as f64)
}

/// Formats a number with separators: 1234567 as "1,234,567".
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of things with their name: "1 step", "2 steps" or "2 batches".
pub fn plural(number: u64, name: &str) -> String {
    let ending = match number {
        1 => "",
        _ if name.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{number} {name}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_thing_is_singular() {
        assert_eq!([0, 1, 2].map(|number| plural(number, "step")), ["0 steps", "1 step", "2 steps"]);
        assert_eq!([1, 2].map(|number| plural(number, "batch")), ["1 batch", "2 batches"]);
    }

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1000), "1,000");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }
}
