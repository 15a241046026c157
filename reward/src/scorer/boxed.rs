//! Finds `\boxed{...}` with matching braces.

/// The text from byte `start` to the brace that closes the first opening brace at or after `start`,
/// inclusive.
pub(super) fn balanced_from(text: &str, start: usize) -> Option<&str> {
    let mut open = 0_i64;
    for (offset, byte) in text.as_bytes()[start..].iter().enumerate() {
        match byte {
            b'{' => open += 1,
            b'}' => {
                open -= 1;
                if open == 0 {
                    return Some(&text[start..=start + offset]);
                }
            }
            _ => {}
        }
    }
    None
}

/// The content of the last `\boxed{...}`; `None` when there is none or it does not close.
pub(super) fn last_boxed_content(text: &str) -> Option<&str> {
    let whole = balanced_from(text, text.rfind("\\boxed{")?)?;
    whole.strip_prefix("\\boxed{")?.strip_suffix('}')
}
