//! Measures whether the verdicts of `math_equiv` are right, and whether `math-verify` agrees.
//!
//! Every distinct answer of the data sets is compared with itself, with other spellings of itself, and with
//! answers of other values ([`pairs`]). The right verdict on each pair is therefore known in advance. If the
//! two scorers differ, one of them is wrong, and [`cause`] must explain why. A difference without an
//! explanation fails the run.

mod cause;
mod form;
mod pairs;
mod tables;

use rolldock_reward::scorer::math_equiv::{Verdict, equivalent};

use super::data;
use super::peer::{Peer, Said, VERIFIER};
use cause::Cause;
use pairs::{Pair, pairs_of};
use rolldock_bench_figures::{Bar, Figure};

/// Number of pairs that the peer gets in one line.
const BATCH: usize = 200;

/// A pair with both verdicts.
struct Judged {
    set: &'static str,
    pair: Pair,
    ours: Verdict,
    theirs: Option<Said>,
}

impl Judged {
    fn is_ours_right(&self) -> bool {
        self.ours.is_equal == self.pair.kind.keeps()
    }

    /// Whether the peer's verdict is right; true without a peer.
    fn is_theirs_right(&self) -> bool {
        self.theirs.as_ref().is_none_or(|said| said.equal == self.pair.kind.keeps())
    }

    fn is_disagreement(&self) -> bool {
        self.is_ours_right() != self.is_theirs_right()
    }

    fn cause(&self) -> Option<Cause> {
        cause::of(&self.pair, self.ours, self.theirs.as_ref()?)
    }
}

fn judge(quick: bool, mut peer: Option<&mut Peer>) -> anyhow::Result<Vec<Judged>> {
    let mut judged = Vec::new();
    for set in data::answers(quick)? {
        let pairs: Vec<Pair> = set.answers.iter().flat_map(|truth| pairs_of(truth)).collect();
        for batch in pairs.chunks(BATCH) {
            let asked: Vec<(&str, &str)> =
                batch.iter().map(|pair| (pair.answer.as_str(), pair.truth.as_str())).collect();
            let mut said = peer.as_mut().map(|peer| peer.verify(&asked)).transpose()?.map(Vec::into_iter);
            for pair in batch {
                let theirs = said.as_mut().and_then(Iterator::next);
                anyhow::ensure!(said.is_none() || theirs.is_some(), "the peer has not judged every pair");
                let ours = equivalent(&pair.answer, &pair.truth);
                judged.push(Judged { set: set.name, pair: pair.clone(), ours, theirs });
            }
        }
    }
    Ok(judged)
}

/// Prints the tables, and returns figures that sum them up.
pub(super) fn figures(quick: bool, peer: Option<&mut Peer>) -> anyhow::Result<Vec<Figure>> {
    let with_peer = peer.is_some();
    let judged = judge(quick, peer)?;
    if with_peer {
        println!("{}\n", tables::by_kind(&judged));
        println!("{}\n", tables::by_cause(&judged));
    }
    for wrong in judged.iter().filter(|it| !it.is_ours_right()) {
        let (pair, ours) = (&wrong.pair, wrong.ours);
        eprintln!(
            "ours is wrong: {} | {} | {} | {}",
            pair.kind.name(),
            pair.answer,
            pair.truth,
            ours.reason.as_str()
        );
    }
    let mut figures = Vec::new();
    for set in tables::sets(&judged) {
        let of_set: Vec<&Judged> = judged.iter().filter(|it| it.set == set).collect();
        let share = |count: usize| count as f64 / of_set.len() as f64 * 100.0;
        let count = |holds: fn(&Judged) -> bool| of_set.iter().filter(|it| holds(it)).count();
        figures.push(Figure::new(format!("{set}: pairs of answers"), of_set.len() as f64, "pairs"));
        let ours = Figure::new(
            format!("{set}: right verdicts of math_equiv"),
            share(count(Judged::is_ours_right)),
            "%",
        );
        if !with_peer {
            figures.push(ours);
            continue;
        }
        figures.push(ours.against_named(VERIFIER, share(count(Judged::is_theirs_right))));
        let same = share(of_set.len() - count(Judged::is_disagreement));
        figures.push(Figure::new(format!("{set}: the same verdict as {VERIFIER}"), same, "%"));
    }
    let wrong = judged.iter().filter(|it| !it.is_ours_right()).count();
    figures.push(Figure::new("wrong verdicts of math_equiv", wrong as f64, "pairs").bar(Bar::AtMost(0.0)));
    if with_peer {
        let unexplained = judged.iter().filter(|it| it.is_disagreement() && it.cause().is_none()).count();
        let figure = Figure::new("disagreements without an explanation", unexplained as f64, "pairs");
        figures.push(figure.bar(Bar::AtMost(0.0)));
    }
    Ok(figures)
}
