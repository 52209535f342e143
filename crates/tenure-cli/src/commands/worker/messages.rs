//! What a worker and its helper send each other. This file knows only the bytes, not when they are
//! sent and what follows from them.
//!
//! ```text
//! control socket   worker → helper   one byte with three descriptors, for each command
//! lifeline         worker → helper   the order, and perhaps a farewell
//!                  helper → worker   reports of five bytes
//! ```
//!
//! Each command has a lifeline of its own, one of the three descriptors. The others are the ends of
//! the pipes for its stdout and stderr, so that no output passes through the helper.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

// ── over the control socket ──────────────────────────────────────────────────────────────────────

/// What the helper needs to start a command and to stay in contact with its worker.
pub(crate) struct Handed {
    pub(crate) lifeline: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

/// What the helper finds in the control socket.
pub(crate) enum Received {
    Command(Handed),
    /// Some descriptors are missing, because this process may not open more. The others are closed,
    /// so the worker sees that its lifeline is closed.
    Incomplete,
    /// The worker is gone, or has another helper.
    Closed,
}

const HAND_OVER: u8 = b'h';

/// Sends a command's descriptors: its lifeline, its stdout and its stderr.
pub(crate) fn hand_over(control: impl AsFd, given: [BorrowedFd<'_>; 3]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut attached = SendAncillaryBuffer::new(&mut space);
    attached.push(SendAncillaryMessage::ScmRights(&given));
    sendmsg(control, &[IoSlice::new(&[HAND_OVER])], &mut attached, SendFlags::empty())?;
    Ok(())
}

/// Receives the descriptors of one command.
pub(crate) fn receive(control: impl AsFd) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut attached = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let received = recvmsg(control, &mut parts, &mut attached, CLOSE_ON_EXEC)?;
    if received.bytes == 0 {
        return Ok(Received::Closed);
    }
    let mut given: Vec<OwnedFd> = Vec::with_capacity(3);
    for message in attached.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            given.extend(descriptors);
        }
    }
    // Other systems cannot set the flag while receiving. There a command that starts in this moment
    // may inherit the descriptors.
    #[cfg(not(target_os = "linux"))]
    for descriptor in &given {
        rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::CLOEXEC)?;
    }
    Ok(match <[OwnedFd; 3]>::try_from(given) {
        Ok([lifeline, stdout, stderr]) => Received::Command(Handed { lifeline, stdout, stderr }),
        Err(_) => Received::Incomplete,
    })
}

#[cfg(target_os = "linux")]
const CLOSE_ON_EXEC: RecvFlags = RecvFlags::CMSG_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const CLOSE_ON_EXEC: RecvFlags = RecvFlags::empty();

// ── over a lifeline, from the worker ─────────────────────────────────────────────────────────────

/// What is different in each start of the command: its args, and what its environment has besides
/// the helper's.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) args: String,
    pub(crate) environment: Vec<(String, String)>,
}

impl Order {
    /// The message for an order: the length of what follows, and then each text after its own
    /// length.
    pub(crate) fn message<'a>(
        args: &'a str,
        environment: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Vec<u8> {
        let mut message = vec![0; 4];
        let mut push = |text: &str| {
            message.extend_from_slice(&length(text.len()));
            message.extend_from_slice(text.as_bytes());
        };
        push(args);
        for (name, value) in environment {
            push(name);
            push(value);
        }
        let body = length(message.len() - 4);
        message[..4].copy_from_slice(&body);
        message
    }

    /// Parses what follows the first length. `None` if it is not what [`Order::message`] writes.
    pub(crate) fn parse(mut body: &[u8]) -> Option<Order> {
        let args = text(&mut body)?;
        let mut environment = Vec::new();
        while !body.is_empty() {
            environment.push((text(&mut body)?, text(&mut body)?));
        }
        Some(Order { args, environment })
    }
}

/// Longer texts than 4 GiB do not occur: a store refuses far shorter ones.
fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes()
}

fn text(body: &mut &[u8]) -> Option<String> {
    let (length, rest) = body.split_first_chunk()?;
    let (text, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    *body = rest;
    String::from_utf8(text.to_vec()).ok()
}

/// The worker's message to end the command gracefully. The helper measures the time itself, so that
/// the worker may exit.
pub(crate) fn farewell(patience: Duration) -> [u8; 4] {
    u32::try_from(patience.as_millis()).unwrap_or(u32::MAX).to_be_bytes()
}

/// The time that a farewell grants.
pub(crate) fn patience(farewell: [u8; 4]) -> Duration {
    Duration::from_millis(u32::from_be_bytes(farewell).into())
}

// ── over a lifeline, to the worker ───────────────────────────────────────────────────────────────

/// What the helper reports about a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    /// The helper has got an order or a farewell. It reports this at once, to show that it lives.
    Heard,
    /// The process that becomes the command exists, in the process group with this id. It reports
    /// this itself, before it becomes the command.
    Started(i32),
    Exited(u8),
    Killed(i32),
    /// The command could not be run, with this error of the system.
    NotRun(i32),
}

impl Report {
    pub(crate) const LENGTH: usize = 5;

    /// A letter and a number. Allocates nothing, because a new process sends a report between fork
    /// and exec.
    pub(crate) fn bytes(self) -> [u8; Report::LENGTH] {
        let (letter, number) = match self {
            Report::Heard => (b'h', 0),
            Report::Started(group) => (b's', group),
            Report::Exited(code) => (b'e', i32::from(code)),
            Report::Killed(signal) => (b'k', signal),
            Report::NotRun(error) => (b'n', error),
        };
        let [a, b, c, d] = number.to_be_bytes();
        [letter, a, b, c, d]
    }

    pub(crate) fn parse([letter, number @ ..]: [u8; Report::LENGTH]) -> Option<Report> {
        let number = i32::from_be_bytes(number);
        match letter {
            b'h' => Some(Report::Heard),
            b's' => Some(Report::Started(number)),
            b'e' => u8::try_from(number).ok().map(Report::Exited),
            b'k' => Some(Report::Killed(number)),
            b'n' => Some(Report::NotRun(number)),
            _ => None,
        }
    }

    /// How a command ended. A death by a signal has a report of its own, not an exit code as in
    /// shells, because a command can end with any exit code by itself.
    pub(crate) fn of(status: ExitStatus) -> Report {
        use std::os::unix::process::ExitStatusExt as _;
        match (status.code(), status.signal()) {
            (Some(code), _) => Report::Exited(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
            (None, signal) => Report::Killed(signal.unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_the_helper_reports_is_understood_and_anything_else_is_not() {
        for report in [
            Report::Heard,
            Report::Started(4_194_304),
            Report::Exited(255),
            Report::Killed(9),
            Report::NotRun(2),
        ] {
            assert_eq!(Report::parse(report.bytes()), Some(report));
        }
        assert_eq!(Report::parse([b'e', 0, 0, 1, 0]), None, "no exit code is that large");
        assert_eq!(Report::parse([0; 5]), None);
    }

    #[test]
    fn an_order_is_read_as_it_was_written_and_half_of_one_is_refused() {
        let message = Order::message("{\"to\": \"é\"}", [("A", "1"), ("B", "")]);
        let (length, body) = message.split_first_chunk().unwrap();
        assert_eq!(u32::from_be_bytes(*length) as usize, body.len());
        let order = Order {
            args: "{\"to\": \"é\"}".into(),
            environment: vec![("A".into(), "1".into()), ("B".into(), String::new())],
        };
        assert_eq!(Order::parse(body), Some(order));
        assert_eq!(Order::parse(&body[..body.len() - 1]), None);
        assert_eq!(Order::parse(&[body, &[0]].concat()), None);
        assert_eq!(Order::parse(&[0, 0, 0, 1, 0xff]), None, "not UTF-8");
    }

    #[test]
    fn descriptors_arrive_in_their_order_and_close_when_the_command_starts() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let pairs = [(); 3].map(|()| UnixStream::pair().unwrap());
        hand_over(&ours, pairs.each_ref().map(|(_, given)| given.as_fd())).unwrap();
        let Ok(Received::Command(handed)) = receive(&theirs) else { panic!("it was sent") };
        let got = [handed.lifeline, handed.stdout, handed.stderr];
        for (number, ((kept, _), got)) in (1..).zip(pairs.iter().zip(&got)) {
            assert!(rustix::io::fcntl_getfd(got).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
            rustix::io::write(kept, &[number]).unwrap();
            let mut byte = [0];
            rustix::io::read(got, &mut byte).unwrap();
            assert_eq!(byte, [number]);
        }
        rustix::io::write(&ours, b"h").unwrap();
        assert!(matches!(receive(&theirs), Ok(Received::Incomplete)));
        drop(ours);
        assert!(matches!(receive(&theirs), Ok(Received::Closed)));
    }
}
