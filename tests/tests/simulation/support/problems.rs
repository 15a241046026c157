//! Prompts whose token ids encode their row numbers, with answers and a reward that are known.

use rolldock::data::{DataError, DataFields, Prompt, PromptSource, PromptUid};
use rolldock::engine::{FinishReason, SampleOutput};
use rolldock::rollout::{Grade, Grader, PromptFeed};
use rolldock_simengine::{Answer, AnswerKey};

/// The token before the end token in a right and in a wrong response. Other tokens of a response have
/// neither id.
const RIGHT: u32 = 7;
const WRONG: u32 = 8;
pub(super) const EOS: u32 = 0;

pub(crate) struct EveryPrompt;

impl AnswerKey for EveryPrompt {
    fn answer(&self, _prompt_hash: u64) -> Option<Answer> {
        Some(Answer { right_ids: [RIGHT].into(), wrong_ids: [WRONG].into(), difficulty: None })
    }
}

/// Prompts that are solved always, every second time, or never, with equal shares.
pub(crate) struct ThreeKinds;

impl AnswerKey for ThreeKinds {
    fn answer(&self, prompt_hash: u64) -> Option<Answer> {
        let difficulty = Some([0.0, 0.5, 1.0][(prompt_hash % 3) as usize]);
        Some(Answer { difficulty, ..EveryPrompt.answer(prompt_hash)? })
    }
}

pub(crate) struct LastToken;

impl Grader for LastToken {
    fn grade(&self, _prompt: &Prompt, output: &SampleOutput) -> Result<Grade, String> {
        let right =
            output.finish_reason == FinishReason::Stop && output.response_ids.ends_with(&[RIGHT, EOS]);
        let acc = f32::from(u8::from(right));
        Ok(Grade {
            score: 2.0 * acc - 1.0,
            acc,
            overlong_penalty: 0.0,
            prediction: None,
            parts: Default::default(),
        })
    }
}

/// A source of prompts whose token ids encode their row numbers.
struct Numbered {
    next: u64,
    end: u64,
}

/// A feed of the prompts with row numbers below `end`, which are drawn inline.
pub(crate) fn prompts(end: u64) -> PromptFeed {
    PromptFeed::inline(Box::new(Numbered { next: 0, end }))
}

impl PromptSource for Numbered {
    fn next(&mut self) -> Result<Option<Prompt>, DataError> {
        if self.next == self.end {
            return Ok(None);
        }
        let row = self.next;
        self.next += 1;
        Ok(Some(prompt(row)))
    }
}

/// The prompt whose token ids encode this row number.
pub(crate) fn prompt(row: u64) -> Prompt {
    Prompt {
        uid: PromptUid(row),
        row,
        visit: 0,
        ids: vec![100, 200 + (row % 1000) as u32, 1300 + (row / 1000) as u32].into(),
        text: "".into(),
        messages: [].into(),
        answer: "".into(),
        source: "".into(),
        difficulty: None,
        fields: DataFields::default(),
    }
}
