use std::sync::Arc;

use super::*;

/// A terminal that either rewraps its lines when its width changes, or cuts them off.
struct Screen {
    /// Lines as they were written. Each line fills as many rows as it needs.
    lines: Vec<String>,
    /// The line and the character at which the cursor is.
    cursor: (usize, usize),
    width: usize,
    wraps: bool,
}

impl Screen {
    fn put(&mut self, text: &str) {
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            if let Some(after) = rest.strip_prefix("\x1b[J") {
                let (line, column) = self.cursor;
                self.lines.truncate(line + 1);
                self.lines[line].truncate(column);
                rest = after;
                continue;
            }
            let (line, column) = &mut self.cursor;
            match next {
                // The cursor moves to the start of the row. In a wrapped line this may not be the start of
                // the line.
                '\r' => *column -= *column % self.width,
                '\n' => {
                    self.lines.push(String::new());
                    self.cursor = (self.lines.len() - 1, 0);
                }
                other => {
                    self.lines[*line].truncate(*column);
                    self.lines[*line].push(other);
                    *column += 1;
                }
            }
            rest = &rest[next.len_utf8()..];
        }
    }

    fn resize(&mut self, width: usize) {
        self.width = width;
        if !self.wraps {
            self.lines.iter_mut().for_each(|line| line.truncate(width));
            self.cursor.1 = self.cursor.1.min(width - 1);
        }
    }

    fn rows(&self) -> usize {
        self.lines.iter().map(|line| line.len().div_ceil(self.width).max(1)).sum()
    }
}

#[derive(Clone)]
struct Shared(Arc<Mutex<Screen>>);

impl Terminal for Shared {
    fn width(&self) -> usize {
        self.0.lock().width
    }

    fn write(&mut self, text: &str) {
        self.0.lock().put(text);
    }
}

fn screen(wraps: bool) -> (Shared, LiveLine) {
    let screen = Screen { lines: vec![String::new()], cursor: (0, 0), width: 80, wraps };
    let shared = Shared(Arc::new(Mutex::new(screen)));
    let line = LiveLine::new(Some(Box::new(shared.clone())));
    (shared, line)
}

#[test]
fn a_line_is_erased_when_the_terminal_shrinks() {
    for wraps in [true, false] {
        let (screen, line) = screen(wraps);
        let mut expected = Vec::new();
        for width in [80, 40, 13, 100, 7, 80] {
            screen.0.lock().resize(width);
            line.show(|room| "=".repeat(room));
            let shown = "=".repeat(width - 1);
            assert_eq!(screen.0.lock().lines, [&expected[..], &[shown.as_str()]].concat());
            screen.0.lock().resize(width / 2);
            line.above(|| screen.0.lock().put("log\n"));
            expected.push("log");
            let lines = screen.0.lock().lines.clone();
            assert_eq!(lines[..lines.len() - 1], expected, "wraps: {wraps}, width {width}");
            assert_eq!(lines.last().unwrap().len(), (width / 2).saturating_sub(1), "it is cut to the window");
        }
        line.clear();
        assert_eq!(screen.0.lock().lines, [&expected[..], &[""]].concat());
        assert_eq!(screen.0.lock().rows(), expected.len() + 1);
    }
}

#[test]
fn a_line_that_is_not_shown_writes_nothing() {
    let (screen, line) = screen(true);
    line.above(|| screen.0.lock().put("log\n"));
    line.clear();
    assert_eq!(screen.0.lock().lines, ["log", ""]);
    let hidden = LiveLine::new(None);
    hidden.show(|_| panic!("nothing is drawn"));
    assert_eq!(hidden.above(|| 7), 7);
}
