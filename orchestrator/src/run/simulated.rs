//! The simulated model: its tokenizer, its response lengths, its servers, and its key of answers.
//!
//! The workload draws whether a simulated response is right or wrong. So the model needs the answer to every
//! prompt that it gets. [`GrowingKey`] records the answers while prompts are drawn.

mod turns;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use parking_lot::RwLock;
use rolldock_simengine::{
    Answer, AnswerKey, AnswerTable, LengthConfig, ServerConfig, SimServer, TextCodec as SimTextCodec,
    Workload, WorkloadConfig,
};

use crate::data::{DataError, DrawCounts, Position, Prompt, PromptSource, TextCodec};
use crate::recipe::{Recipe, Simulated};
use crate::scope::Scope;

pub(super) use turns::TurnKey;

/// The answer to a question, and its difficulty from 0 to 1.
#[derive(Debug, Clone)]
struct Known {
    answer: Arc<str>,
    difficulty: Option<f32>,
}

/// The known answers, by the hash of the question's text.
type Questions = Arc<RwLock<HashMap<u64, Known>>>;

fn question_hash(question: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(question.trim().as_bytes())
}

/// The longest response, as a multiple of the mean length. The length distribution is truncated there.
const LENGTH_SPREAD: f64 = 64.0;
/// A factor that corrects the mean length: about half of the samples are wrong, and wrong samples are a
/// quarter longer.
const WRONG_ANSWERS_ARE_LONGER: f64 = 1.12;

/// Opens the tokenizer `tokenizer` for the simulated servers, from the files from which `codec` was opened.
pub fn open_sim_codec(tokenizer: &str, codec: &TextCodec) -> anyhow::Result<SimTextCodec> {
    if tokenizer == "builtin" {
        return Ok(SimTextCodec::builtin()?);
    }
    // `tokenizer` may be an id on a hub, which is not a path. `codec.origin()` is then the path of its files.
    let path = [tokenizer, codec.origin()].map(Path::new).into_iter().find(|path| path.exists());
    let path = path.with_context(|| format!("cannot find the files of tokenizer {tokenizer}"))?;
    let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
    let json = std::fs::read(&file).with_context(|| format!("cannot read tokenizer {}", file.display()))?;
    SimTextCodec::from_json(&json).with_context(|| format!("tokenizer {}", file.display()))
}

/// The simulated model for a tokenizer and a mean response length.
pub fn simulated_workload(
    codec: &SimTextCodec,
    eos_id: u32,
    seed: u64,
    mean_response_length: f64,
) -> Workload {
    let length = length_config(mean_response_length);
    Workload::new(WorkloadConfig {
        seed,
        eos_id,
        vocab_size: codec.vocab_size(),
        filler_ids: codec.filler_ids(),
        length,
        ..WorkloadConfig::default()
    })
}

/// The distribution of the simulated model's response lengths, given their mean in tokens.
pub(crate) fn length_config(mean_response_length: f64) -> LengthConfig {
    // Lengths are log-normal, so their mean is above their median. The median for the hardest prompts is four
    // times that for the easiest.
    let sigma = LengthConfig::default().sigma;
    let median = mean_response_length / (sigma * sigma / 2.0).exp() / WRONG_ANSWERS_ARE_LONGER;
    LengthConfig {
        median_easy: median * 0.4,
        median_hard: median * 1.6,
        max: (mean_response_length * LENGTH_SPREAD) as u32,
        ..LengthConfig::default()
    }
}

/// The configuration of a server of a `[fleet.simulated]` table.
pub(crate) fn server_config(recipe: &Recipe, simulated: &Simulated, number: usize) -> ServerConfig {
    let config = ServerConfig {
        name: format!("sim-{number}"),
        model: recipe.model.name.clone(),
        max_num_seqs: simulated.max_num_seqs,
        speed: simulated.speeds.get(number).copied().unwrap_or(1.0),
        time_scale: simulated.time_scale,
        ..ServerConfig::default()
    };
    simulated.engine.unwrap_or_default().configure(config)
}

/// Starts the servers of a `[fleet.simulated]` table.
pub(super) fn start_servers(
    recipe: &Recipe,
    simulated: &Simulated,
    workload: Workload,
    answers: &Arc<dyn AnswerKey>,
    scope: &Scope,
) -> anyhow::Result<Vec<SimServer>> {
    let workload = Arc::new(workload);
    let mut servers = Vec::new();
    for number in 0..simulated.servers {
        let config = server_config(recipe, simulated, number);
        let (workload, answers) = (Arc::clone(&workload), Arc::clone(answers));
        let server = SimServer::start(config, workload, answers, scope.tracker(), scope.token().clone())?;
        servers.push(server);
    }
    Ok(servers)
}

/// The form in which a simulated response states its result.
#[derive(Debug, Clone, Copy)]
enum AnswerForm {
    /// The form that `math_dapo` reads.
    AnswerLine,
    /// A form that all scorers of math answers read, for every other scorer.
    Every,
}

/// The answers to the prompts drawn so far. The table grows with the number of prompts drawn.
#[derive(Debug, Clone)]
pub struct GrowingKey {
    table: Arc<RwLock<AnswerTable>>,
    /// The answers by the hash of the question's text, for prompts of turns.
    questions: Questions,
    form: AnswerForm,
}

impl GrowingKey {
    /// An empty key, for answers that the scorer named `scorer` can read.
    pub fn for_scorer(scorer: &str) -> Self {
        let form = if scorer == "math_dapo" { AnswerForm::AnswerLine } else { AnswerForm::Every };
        Self { table: Arc::default(), questions: Arc::default(), form }
    }

    /// Wraps `source` so that each drawn prompt adds its answer to the key.
    pub(super) fn watch(
        &self,
        source: Box<dyn PromptSource>,
        codec: &Arc<TextCodec>,
    ) -> Box<dyn PromptSource> {
        Box::new(Watched { source, key: self.clone(), codec: Arc::clone(codec) })
    }

    /// Adds the answer to a prompt.
    pub fn learn(&self, prompt: &Prompt, codec: &TextCodec) {
        let ending = |answer: &str| -> Arc<[u32]> {
            codec.encode(&self.answer_line(answer)).unwrap_or_default().into()
        };
        let wrong = format!("{}7", prompt.answer);
        let answer = Answer {
            right_ids: ending(&prompt.answer),
            wrong_ids: ending(&wrong),
            difficulty: prompt.difficulty,
        };
        self.table.write().insert(&prompt.ids, answer);
        if let Some(question) = prompt.messages.iter().find(|message| message.role == "user") {
            let known = Known { answer: Arc::clone(&prompt.answer), difficulty: prompt.difficulty };
            self.questions.write().insert(question_hash(&question.content), known);
        }
    }
}

impl GrowingKey {
    fn answer_line(&self, answer: &str) -> String {
        match self.form {
            AnswerForm::AnswerLine => format!("\nAnswer: {answer}"),
            AnswerForm::Every => format!("\n#### {answer}\nAnswer: \\boxed{{{answer}}}"),
        }
    }
}

impl AnswerKey for GrowingKey {
    fn answer(&self, prompt_hash: u64) -> Option<Answer> {
        self.table.read().answer(prompt_hash)
    }
}

/// A source of prompts whose answers the simulated model learns.
struct Watched {
    source: Box<dyn PromptSource>,
    key: GrowingKey,
    codec: Arc<TextCodec>,
}

impl PromptSource for Watched {
    fn next(&mut self) -> Result<Option<Prompt>, DataError> {
        let prompt = self.source.next()?;
        if let Some(prompt) = &prompt {
            self.key.learn(prompt, &self.codec);
        }
        Ok(prompt)
    }

    fn fetch(&mut self, row: u64, visit: u32) -> Result<Option<Prompt>, DataError> {
        let prompt = self.source.fetch(row, visit)?;
        if let Some(prompt) = &prompt {
            self.key.learn(prompt, &self.codec);
        }
        Ok(prompt)
    }

    fn position(&self) -> Option<Position> {
        self.source.position()
    }

    fn drawn(&self) -> Option<DrawCounts> {
        self.source.drawn()
    }
}
