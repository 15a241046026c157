//! Shortens an answer that does not have the form of the protocol, so that it fits into an error message.

/// Maximum number of characters of a line in an error.
const LINE_CHARS_MAX: usize = 300;
/// Maximum number of characters of a page's title in an error.
const TITLE_CHARS_MAX: usize = 80;

/// The first line of a body. An HTML page is described by its title, and an empty body as "no words".
pub fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    if text.is_empty() {
        return "no words".to_owned();
    }
    let start: String = text.chars().take("<!doctype html".len()).collect::<String>().to_lowercase();
    if start.starts_with("<html") || start == "<!doctype html" {
        return page_title(text)
            .map_or("an HTML page".to_owned(), |title| format!("an HTML page, {title:?}"));
    }
    let first_line = text.lines().next().unwrap_or_default();
    let shown: String = first_line.chars().take(LINE_CHARS_MAX).collect();
    if shown.len() < text.len() { format!("{shown} ...") } else { shown }
}

/// The title of an HTML page, on one line.
fn page_title(page: &str) -> Option<String> {
    let lower = page.to_ascii_lowercase();
    let begin = lower.find("<title>")? + "<title>".len();
    let length = lower[begin..].find("</title>")?;
    let title = page[begin..begin + length].split_whitespace().collect::<Vec<_>>().join(" ");
    Some(title.chars().take(TITLE_CHARS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::excerpt;

    #[test]
    fn an_html_page_is_shown_by_its_title_only() {
        let page =
            "<!DOCTYPE html>\n<html><head><title>Welcome\n to nginx!</title></head><body>Lorem ipsum</body>";
        assert_eq!(excerpt(page.as_bytes()), "an HTML page, \"Welcome to nginx!\"");
        assert_eq!(excerpt(b"  <html>oops</html>"), "an HTML page");
        assert_eq!(
            excerpt("<HTML><TITLE>\u{e9}\u{130}</TITLE>".as_bytes()),
            "an HTML page, \"\u{e9}\u{130}\""
        );
    }

    #[test]
    fn other_text_is_shown_by_its_first_line() {
        assert_eq!(excerpt(b"no such model\n  at line 7\n"), "no such model ...");
        assert_eq!(excerpt(b" full \n"), "full");
        assert_eq!(excerpt(b"\xff\n"), "\u{fffd}");
        assert_eq!(excerpt(b""), "no words");
        assert_eq!(excerpt("x".repeat(1000).as_bytes()), format!("{} ...", "x".repeat(300)));
    }
}
