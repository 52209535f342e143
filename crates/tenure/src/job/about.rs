//! Which attempt of which job an event or an answer is about: enough to trace it, and to count by.

use serde::Serialize;

use super::{JobId, JobRecord, Name, Tenant};
use crate::lease::{Fence, Token};

/// Which attempt of which job an event or an answer is about. Events carry it, and so does the
/// answer about a job that was taken back.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[allow(missing_docs)]
pub struct About {
    pub job: JobId,
    /// The token of the attempt; [`Token::NONE`] before the first.
    pub token: Token,
    pub kind: Name,
    pub queue: Name,
    pub tenant: Tenant,
    /// Which attempt it is; 0 before the first.
    pub attempt: u16,
    /// The trace that the job continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

impl About {
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
