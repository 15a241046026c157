//! Measures the CPU time to read an answer with our reader and with the JSON libraries, in turns.
//!
//! Each reader gets the same bytes. The typed readers have to find the same columns, bit for bit, and build nothing
//! else. Our reader gets the bytes in pieces as long as the reads of its connection. The libraries get them in one
//! piece; a client would have to join the pieces first. The tree of serde_json shows the cost of reading without types,
//! so its values are not compared.

use std::hint::black_box;

use rolldock::engine::GenerateRequest;
use rolldock::engine::http::read_recorded;

use super::request;
use rolldock_bench_answers::{Body, Face};
use rolldock_bench_answers::{Columns, typed};
use rolldock_bench_figures::cpu;
use rolldock_bench_figures::{Bar, Figure};

/// Numbers of tokens of the answers.
pub(super) const LENGTHS: [usize; 2] = [8192, 16_384];
/// Bytes of one read of a connection.
const PIECE_BYTES: usize = 64 << 10;

#[derive(Debug, Clone, Copy)]
enum Reader {
    Ours,
    SerdeJson,
    SimdJson,
    SonicRs,
    Tree,
}

impl Reader {
    const ALL: [Self; 5] = [Self::Ours, Self::SerdeJson, Self::SimdJson, Self::SonicRs, Self::Tree];

    fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::SerdeJson => "serde_json, typed",
            Self::SimdJson => "simd-json, typed",
            Self::SonicRs => "sonic-rs, typed",
            Self::Tree => "serde_json, tree",
        }
    }

    /// The least rate of our reader, as a multiple of the rate of this reader.
    fn bar(self) -> Bar {
        match self {
            Self::SerdeJson => Bar::RatioAtLeast(1.5),
            Self::Ours | Self::SimdJson | Self::SonicRs => Bar::RatioAtLeast(1.0),
            Self::Tree => Bar::RatioAtLeast(2.0),
        }
    }

    /// Reads an answer and returns the CPU seconds that this took. simd-json changes its input, so it gets a
    /// copy, which is made before the measurement.
    fn seconds(self, body: &Body, request: &GenerateRequest) -> anyhow::Result<f64> {
        let mut copy = body.text.clone();
        let started = cpu::of_this_thread();
        let columns = match self {
            Self::Ours => Some(ours(body, request)?),
            Self::SerdeJson => Some(typed::by_serde_json(&body.text, &body.prompt_ids)?),
            Self::SimdJson => Some(typed::by_simd_json(&mut copy, &body.prompt_ids)?),
            Self::SonicRs => Some(typed::by_sonic_rs(&body.text, &body.prompt_ids)?),
            Self::Tree => {
                drop(black_box(serde_json::from_slice::<serde_json::Value>(&body.text)?));
                None
            }
        };
        let seconds = (cpu::of_this_thread() - started).as_secs_f64();
        let is_same = columns.is_none_or(|columns| columns.is_same(&body.columns));
        anyhow::ensure!(is_same, "{} has read other columns than were written", self.name());
        Ok(seconds)
    }
}

fn ours(body: &Body, request: &GenerateRequest) -> anyhow::Result<Columns> {
    let sample = read_recorded(request, body.text.chunks(PIECE_BYTES))?.samples.remove(0);
    Ok(Columns { ids: sample.response_ids, logprobs: sample.logprobs })
}

/// The bytes of an answer that one core reads per second, in both dialects.
pub(super) fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let rounds = if quick { 11 } else { 51 };
    let mut figures = Vec::new();
    for face in Face::ALL {
        for tokens in LENGTHS {
            let body = Body::new(face, tokens)?;
            let request = request(&body.prompt_ids, tokens as u32, 0);
            let mut seconds = Reader::ALL.map(|_| Vec::with_capacity(rounds));
            for _ in 0..rounds {
                for (reader, seconds) in Reader::ALL.into_iter().zip(&mut seconds) {
                    seconds.push(reader.seconds(&body, &request)?);
                }
            }
            let bytes = body.text.len() as f64;
            let [ours, peers @ ..] = seconds.map(|seconds| bytes / median(seconds) / 1e6);
            let name = format!("{}, {tokens} tokens, {bytes} bytes: read by one core", face.path());
            for (peer, rate) in Reader::ALL.into_iter().skip(1).zip(peers) {
                let figure = Figure::new(name.clone(), ours, "MB/s").against_named(peer.name(), rate);
                figures.push(figure.bar(peer.bar()));
            }
        }
    }
    Ok(figures)
}

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
