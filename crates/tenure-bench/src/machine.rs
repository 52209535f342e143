//! The machine that was measured: a figure without it means nothing.

use std::fmt;
use std::fs;

use serde::Serialize;

/// What a reader must know of the machine.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// How many cores this process may use.
    pub cores: usize,
    /// The model of the processor.
    pub cpu: String,
    /// The operating system and the version of its kernel.
    pub kernel: String,
    /// How many processes wanted a core when the run began, besides this one: the load average of
    /// the last minute. Other work makes every figure worse.
    pub load: Option<f64>,
}

impl Machine {
    /// This machine.
    pub fn here() -> Machine {
        Machine {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: fs::read_to_string("/proc/cpuinfo")
                .ok()
                .and_then(|text| model(&text))
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            kernel: match fs::read_to_string("/proc/sys/kernel/osrelease") {
                Ok(release) => format!("Linux {}", release.trim()),
                Err(_) => std::env::consts::OS.to_owned(),
            },
            load: fs::read_to_string("/proc/loadavg").ok().and_then(|text| load(&text)),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores = if self.cores == 1 { "core" } else { "cores" };
        write!(f, "{} {cores} of {}, {}", self.cores, self.cpu, self.kernel)
    }
}

/// The model in `/proc/cpuinfo`.
fn model(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    let (_, model) = line.split_once(':')?;
    Some(model.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The first number of `/proc/loadavg`.
fn load(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_linux_are_read() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some  CPU @ 2.0GHz\ncache size\t: 1\n";
        assert_eq!(model(cpuinfo).as_deref(), Some("Some CPU @ 2.0GHz"));
        assert_eq!(model("processor : 0\n"), None);
        assert_eq!(load("0.52 0.58 0.59 1/300 4242\n"), Some(0.52));
        assert_eq!(load(""), None);
    }

    #[test]
    fn this_machine_has_a_core_and_a_name() {
        let machine = Machine::here();
        assert!(machine.cores >= 1 && !machine.cpu.is_empty() && !machine.kernel.is_empty());
        assert!(machine.to_string().contains(" of "), "{machine}");
    }
}
