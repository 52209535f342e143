//! Which attempt of which job an event or an answer is about: enough to trace it, and to count by.

use serde::Serialize;

use super::{JobId, JobRecord, Name, NewJob, Tenant};
use crate::lease::{Fence, Token};

/// Which attempt of which job an event or an answer is about. Events carry it, and so does the
/// answer about a job that was taken back.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[allow(missing_docs)]
pub struct About {
    pub job: JobId,
    /// The token of the attempt; [`Token::NONE`] before the first. Not serialised then.
    #[serde(skip_serializing_if = "is_no_token")]
    pub token: Token,
    pub kind: Name,
    pub queue: Name,
    pub tenant: Tenant,
    /// Which attempt it is; 0 before the first. Not serialised then.
    #[serde(skip_serializing_if = "is_no_attempt")]
    pub attempt: u16,
    /// The trace that the job continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

fn is_no_token(token: &Token) -> bool {
    *token == Token::NONE
}

fn is_no_attempt(attempt: &u16) -> bool {
    *attempt == 0
}

impl About {
    /// A job that was enqueued under this id, before its first attempt.
    pub fn new_job(id: JobId, job: &NewJob) -> About {
        About {
            job: id,
            token: Token::NONE,
            kind: job.kind.clone(),
            queue: job.queue.clone(),
            tenant: job.tenant.clone(),
            attempt: 0,
            trace: job.extras.trace.clone(),
        }
    }

    /// The token of the attempt; `None` before the first.
    pub fn attempt_token(&self) -> Option<Token> {
        (self.token != Token::NONE).then_some(self.token)
    }

    /// The fence of the attempt.
    pub fn fence(&self) -> Fence {
        Fence { job: self.job, token: self.token }
    }
}

impl From<&JobRecord> for About {
    /// The latest attempt of a job.
    fn from(job: &JobRecord) -> About {
        About {
            job: job.id,
            token: job.token,
            kind: job.kind.clone(),
            queue: job.queue.clone(),
            tenant: job.tenant.clone(),
            attempt: job.attempt,
            trace: job.extras.trace.clone(),
        }
    }
}
