//! Finds the program in a response.
//!
//! The program is the last fenced block that is marked as Python (`python`, `py` or `python3`, in any case).
//! Without such a block it is the last block without a mark, and without any block it is the whole response.
//! Marked blocks take precedence, because models often show the output of their program in an unmarked block
//! after the program. A fence is a line that begins, after blanks, with at least three back-ticks. A line
//! with nothing but back-ticks, at least as many as the fence has, closes the block. A block that is not
//! closed extends to the end.

const TICK: char = '`';
const TICKS_MIN: usize = 3;

/// Finds the program in a response, in time linear in its length.
pub(super) fn find(response: &str) -> &str {
    let (mut marked, mut unmarked) = (None, None);
    let mut open: Option<Fence<'_>> = None;
    let mut place = 0;
    for line in response.split_inclusive('\n') {
        let (start, end) = (place, place + line.len());
        place = end;
        let Some((ticks, mark)) = fence(line) else { continue };
        match &open {
            None => open = Some(Fence { ticks, mark, body: end }),
            Some(fence) if mark.is_empty() && ticks >= fence.ticks => {
                fence.keep(&response[fence.body..start], &mut marked, &mut unmarked);
                open = None;
            }
            Some(_) => {}
        }
    }
    if let Some(fence) = open {
        fence.keep(&response[fence.body..], &mut marked, &mut unmarked);
    }
    marked.or(unmarked).unwrap_or(response)
}

struct Fence<'a> {
    ticks: usize,
    mark: &'a str,
    /// The byte offset at which the block begins.
    body: usize,
}

impl<'a> Fence<'a> {
    fn keep(&self, block: &'a str, marked: &mut Option<&'a str>, unmarked: &mut Option<&'a str>) {
        let is_python = ["python", "py", "python3"].iter().any(|name| self.mark.eq_ignore_ascii_case(name));
        if is_python {
            *marked = Some(block);
        } else if self.mark.is_empty() {
            *unmarked = Some(block);
        }
    }
}

/// The number of back-ticks at the beginning of a line, and the first word after them; `None` if the line is
/// not a fence.
fn fence(line: &str) -> Option<(usize, &str)> {
    let text = line.trim();
    let rest = text.trim_start_matches(TICK);
    let ticks = text.len() - rest.len();
    // A line with further back-ticks holds inline code.
    let is_fence = ticks >= TICKS_MIN && !rest.contains(TICK);
    is_fence.then(|| (ticks, rest.split_whitespace().next().unwrap_or_default()))
}

#[cfg(test)]
mod tests;
