//! Measures the cost of a `math_dapo` score. One comparison is with verl (the reference). The other comparison
//! is with a score of only the end of the same response.
//!
//! For the comparison with verl, the responses are short and made of real texts: the end of a GSM8K solution
//! or of a DAPO problem, followed by an answer. Every second response has the answer of another row. Rolldock
//! and verl score these texts in turn, each on one thread. For the other comparison (the last figure), the
//! texts of other responses precede each response. Only CPU time counts, so the machine's other load has
//! little effect.

use std::hint::black_box;
use std::io::{BufWriter, Write};
use std::path::Path;

use rolldock_reward::python_text::tail;
use rolldock_reward::{MathDapo, ScoreInput, Scorer, Variant};
use serde_json::json;

use super::data::{self, Row};
use super::peer::Peer;
use rolldock_bench_figures::cpu;
use rolldock_bench_figures::{Bar, Figure};

/// Number of code points of a response before its answer. The response stays below the 300 code points that
/// are searched, so the whole response is searched.
const TEXT: usize = 240;
/// Number of code points of a long response: 16k tokens of four code points each.
const LONG: usize = 16 * 1024 * 4;
const LONG_RESPONSES: usize = 256;
/// Number of code points that `math_dapo` reads.
const END: usize = 300;
/// Number of repetitions of our scores per round, so that the resolution of the clock does not matter.
const REPEATS: usize = 10;
const LONG_REPEATS: usize = 400;
/// The variants, each with its name and the release of verl that has it.
const VARIANTS: [(Variant, &str, &str); 2] =
    [(Variant::V2025, "2025", "verl 0.9.0"), (Variant::V2026, "2026", "verl 0.9.1")];

struct Response {
    response: String,
    truth: String,
}

fn responses() -> anyhow::Result<Vec<Response>> {
    let rows: Vec<Row> = data::gsm8k()?.into_iter().chain(data::dapo()?).collect();
    let answers = |index: usize| &rows[(index + index % 2) % rows.len()].answer;
    let all = rows.iter().enumerate().map(|(index, row)| {
        let response = format!("{}\nAnswer: {}", tail(&row.text, TEXT), answers(index));
        Response { response, truth: row.answer.clone() }
    });
    Ok(all.collect())
}

/// Some of the responses, each preceded by the texts of other responses.
fn long_responses(short: &[Response]) -> Vec<Response> {
    let filler: String = short.iter().map(|it| it.response.as_str()).take(LONG / TEXT * 2).collect();
    let filler = tail(&filler, LONG);
    let some = short.iter().step_by((short.len() / LONG_RESPONSES).max(1)).take(LONG_RESPONSES);
    some.map(|it| {
        let whole = format!("{filler}{}", it.response);
        Response { response: tail(&whole, LONG).to_owned(), truth: it.truth.clone() }
    })
    .collect()
}

/// CPU seconds for `repeats` scores of each response, and the number of right responses in the last
/// repetition.
fn score<'a>(
    scorer: &MathDapo,
    repeats: usize,
    responses: impl Iterator<Item = (&'a str, &'a str)> + Clone,
) -> anyhow::Result<(f64, usize)> {
    let mut right = 0;
    let started = cpu::own();
    for _ in 0..repeats {
        right = 0;
        for (response, ground_truth) in responses.clone() {
            let input = ScoreInput { response, ground_truth, data_source: "", extra: None };
            right += usize::from(black_box(scorer.score(&input)?).acc > 0.0);
        }
    }
    Ok(((cpu::own() - started).as_secs_f64(), right))
}

fn write(responses: &[Response], file: &Path) -> anyhow::Result<()> {
    let mut lines = BufWriter::new(std::fs::File::create(file)?);
    for it in responses {
        writeln!(lines, "{}", json!({"response": it.response, "ground_truth": it.truth}))?;
    }
    Ok(lines.flush()?)
}

pub(super) fn figures(quick: bool, peer: Option<&mut Peer>) -> anyhow::Result<Vec<Figure>> {
    let short = responses()?;
    let mut figures = rates(quick, &short, peer)?;
    figures.push(long_figure(quick, &short)?);
    Ok(figures)
}

fn rounds(quick: bool) -> usize {
    if quick { 3 } else { 10 }
}

fn rates(quick: bool, short: &[Response], mut peer: Option<&mut Peer>) -> anyhow::Result<Vec<Figure>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("responses.jsonl");
    if let Some(peer) = peer.as_mut() {
        write(short, &file)?;
        anyhow::ensure!(peer.load(&file)? == short.len(), "the peer read another number of rows");
    }
    let mut ours = [const { Vec::new() }; VARIANTS.len()];
    let mut theirs = [const { Vec::new() }; VARIANTS.len()];
    for number in 0..=rounds(quick) {
        for (index, (variant, name, _)) in VARIANTS.into_iter().enumerate() {
            let their_round = peer.as_mut().map(|peer| peer.round(name)).transpose()?;
            let scorer = MathDapo { variant, strict_box: false };
            let pairs = short.iter().map(|it| (it.response.as_str(), it.truth.as_str()));
            let (seconds, right) = score(&scorer, REPEATS, pairs)?;
            if let Some(round) = their_round {
                anyhow::ensure!(round.right == right, "found right={right}, expected right={}", round.right);
                theirs[index].push(short.len() as f64 / round.seconds);
            }
            ours[index].push((short.len() * REPEATS) as f64 / seconds);
            if number == 0 {
                // The first round only warms up.
                ours[index].clear();
                theirs[index].clear();
            }
        }
    }
    let mut figures = Vec::new();
    for (index, (_, name, reference)) in VARIANTS.into_iter().enumerate() {
        let what = format!("math_dapo {name}, short responses, one core");
        let rate = median(&ours[index]);
        let figure = || Figure::new(&what, rate, "scores/s");
        figures.push(figure().bar(Bar::AtLeast(200_000.0)));
        if peer.is_some() {
            let beside = figure().against_named(reference, median(&theirs[index]));
            figures.push(beside.bar(Bar::RatioAtLeast(50.0)));
        }
    }
    Ok(figures)
}

/// Compares scores of long responses with scores of only the ends of these responses. The bar allows a tenth
/// more time, for noise. A cost that depends on the length would exceed the bar, because the response is 200
/// times as long as its end.
fn long_figure(quick: bool, short: &[Response]) -> anyhow::Result<Figure> {
    let long = long_responses(short);
    let scorer = MathDapo::default();
    let whole = long.iter().map(|it| (it.response.as_str(), it.truth.as_str()));
    let ends = long.iter().map(|it| (tail(&it.response, END), it.truth.as_str())).collect::<Vec<_>>();
    let (mut whole_seconds, mut end_seconds) = (Vec::new(), Vec::new());
    for number in 0..=rounds(quick) {
        let (of_whole, right) = score(&scorer, LONG_REPEATS, whole.clone())?;
        let (of_ends, right_by_end) = score(&scorer, LONG_REPEATS, ends.iter().copied())?;
        anyhow::ensure!(
            right == right_by_end,
            "right={right_by_end} for the ends alone, right={right} for the whole responses"
        );
        if number > 0 {
            whole_seconds.push(of_whole);
            end_seconds.push(of_ends);
        }
    }
    let each = 1e9 / (LONG_REPEATS * long.len()) as f64;
    let what = format!("math_dapo 2025, a response of {LONG} code points (peer: its last {END} alone)");
    let figure = Figure::new(what, median(&whole_seconds) * each, "ns").against(median(&end_seconds) * each);
    Ok(figure.bar(Bar::RatioAtMost(1.1)))
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
