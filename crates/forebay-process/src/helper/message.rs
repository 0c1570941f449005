//! Requests to the helper, one message each. An attacker may control the gateway, so all parts are
//! checked.

use crate::cgroup::CgroupLimits;
use crate::launch::variable;
use crate::{Identity, Launch};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Maximum size of a message in bytes.
pub(super) const MOST_BYTES: usize = 1 << 20;
/// Maximum number of descriptors with a message: the socket for the new process, and the
/// descriptors that it inherits.
pub(super) const MOST_DESCRIPTORS: usize = 5;
/// The first byte of each kind of request.
const LAUNCH: u8 = b'L';
const GROUP: u8 = b'G';
const PROGRAM: u8 = b'P';
/// Maximum number of files in a program's private directory (room), which contains only the
/// program's configuration.
const MOST_FILES: usize = 16;
const LONGEST_NAME: usize = 64;

/// A request, as the helper has read it.
#[derive(Debug, PartialEq)]
pub(super) enum Request {
    Launch(LaunchRequest),
    /// Start of a program that listens by itself, with its guardian.
    Program(RoomRequest, LaunchRequest),
    Group(GroupRequest),
}

/// The part of a request that describes the program to start.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LaunchRequest {
    pub(super) dir: PathBuf,
    pub(super) env: Vec<(OsString, OsString)>,
    /// Arguments for [`Launch::parse`].
    pub(super) options: Vec<OsString>,
}

/// The private directory (room) that the helper makes for a program that it starts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RoomRequest {
    /// Name of the room: letters, digits, `-` and `_`.
    pub(super) name: String,
    /// Names and texts of the files in the room.
    pub(super) files: Vec<(String, String)>,
}

/// The creation of a control group.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GroupRequest {
    pub(super) app: String,
    pub(super) limits: CgroupLimits,
}

impl LaunchRequest {
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        encode(LAUNCH, self.texts())
    }

    fn texts(&self) -> impl Iterator<Item = Vec<u8>> {
        let variables =
            self.env.iter().map(|(name, value)| [name.as_bytes(), value.as_bytes()].join(&b'='));
        let count = self.env.len().to_string();
        let texts = [self.dir.as_os_str().as_bytes().to_vec(), count.into_bytes()];
        let options = self.options.iter().map(|option| option.as_bytes().to_vec());
        texts.into_iter().chain(variables).chain(options)
    }

    /// Parses the texts of [`texts`](LaunchRequest::texts). Returns `None` if they are invalid.
    fn parse<'a>(mut texts: impl Iterator<Item = &'a [u8]>) -> Option<LaunchRequest> {
        let dir = PathBuf::from(OsStr::from_bytes(texts.next()?));
        let count = str::from_utf8(texts.next()?).ok()?.parse().ok()?;
        let mut env = Vec::new();
        while env.len() < count {
            env.push(variable(texts.next()?)?);
        }
        let options = texts.map(|text| OsStr::from_bytes(text).to_owned()).collect();
        dir.is_absolute().then_some(LaunchRequest { dir, env, options })
    }

    /// Returns the user that the request names.
    pub(super) fn user(&self) -> Option<(u32, String)> {
        Launch::parse(self.options.iter().cloned())?.user
    }

    /// Returns the launch, and its identity from `users`. Fails if the identity is not one of
    /// `users`, or if `is_group` does not accept the control group. Also fails if the launch has an
    /// option that the helper does not accept, such as `cpus`. Also fails if the program inherits a
    /// listening socket, but `may_listen` is false.
    pub(super) fn launch<'a>(
        &self,
        users: &'a [Identity],
        is_group: impl Fn(&Path) -> bool,
        may_listen: bool,
    ) -> Result<(Launch, &'a Identity), &'static str> {
        let asked = Launch::parse(self.options.iter().cloned()).ok_or("no options of a launch")?;
        let is_user = |identity: &&Identity| {
            (&identity.user, identity.group, identity.alone)
                == (&asked.user, asked.group, asked.alone)
        };
        let identity = users.iter().find(is_user).ok_or("a user that may not be started")?;
        if asked.cgroup.as_deref().is_some_and(|group| !is_group(group)) {
            return Err("a control group that is not an application's");
        }
        let mut launch = Launch {
            limits: asked.limits,
            files: asked.files,
            cgroup: asked.cgroup.clone(),
            argv: asked.argv.clone(),
            inherit: asked.inherit.clone().filter(|_| may_listen),
            stdin: asked.stdin && may_listen,
            ..Launch::default()
        };
        launch.as_user(Some(identity));
        if launch != asked {
            return Err("an option that a helper does not take");
        }
        launch.dir = Some(self.dir.clone());
        launch.takes_environment = true;
        Ok((launch, identity))
    }

    /// Returns the environment, in the form that `__launch` reads.
    pub(super) fn environment(&self) -> Vec<u8> {
        self.env
            .iter()
            .flat_map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat())
            .collect()
    }
}

impl RoomRequest {
    /// Encodes a request to start `program` in the room.
    pub(super) fn encode(&self, program: &LaunchRequest) -> io::Result<Vec<u8>> {
        let start = [self.name.clone(), self.files.len().to_string()];
        let files = self.files.iter().flat_map(|(name, text)| [name.clone(), text.clone()]);
        let texts = start.into_iter().chain(files).map(String::into_bytes);
        encode(PROGRAM, texts.chain(program.texts()))
    }

    fn parse<'a>(texts: &mut impl Iterator<Item = &'a [u8]>) -> Option<RoomRequest> {
        let mut text = || str::from_utf8(texts.next()?).ok();
        let name = text().filter(|name| is_name(name) && !name.contains('.'))?.to_owned();
        let count = text()?.parse().ok().filter(|count| *count <= MOST_FILES)?;
        let mut files = Vec::new();
        while files.len() < count {
            files.push((text().filter(|name| is_name(name))?.to_owned(), text()?.to_owned()));
        }
        Some(RoomRequest { name, files })
    }
}

/// Returns true if `name` is a plain file name, which cannot lead out of its directory.
fn is_name(name: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.len() <= LONGEST_NAME
        && name.bytes().all(is_usual)
}

impl GroupRequest {
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        let CgroupLimits { memory, cpu_percent, processes } = self.limits;
        let numbers = [memory, cpu_percent, processes];
        let numbers = numbers.map(|most| most.map_or_else(String::new, |most| most.to_string()));
        encode(GROUP, std::iter::once(self.app.clone()).chain(numbers).map(String::into_bytes))
    }
}

impl Request {
    /// Parses a message. Returns `None` if `bytes` is not exactly one complete request.
    pub(super) fn parse(bytes: &[u8]) -> Option<Request> {
        let (kind, rest) = bytes.split_first()?;
        let mut texts = rest.strip_suffix(b"\0")?.split(|&byte| byte == 0);
        match *kind {
            LAUNCH => LaunchRequest::parse(texts).map(Request::Launch),
            PROGRAM => {
                let room = RoomRequest::parse(&mut texts)?;
                Some(Request::Program(room, LaunchRequest::parse(texts)?))
            }
            GROUP => {
                let app = str::from_utf8(texts.next()?).ok()?.to_owned();
                let mut number = || match str::from_utf8(texts.next()?).ok()? {
                    "" => Some(None),
                    text => text.parse().ok().map(Some),
                };
                let limits = CgroupLimits {
                    memory: number()?,
                    cpu_percent: number()?,
                    processes: number()?,
                };
                texts.next().is_none().then_some(Request::Group(GroupRequest { app, limits }))
            }
            _ => None,
        }
    }
}

fn encode(kind: u8, texts: impl Iterator<Item = Vec<u8>>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![kind];
    for text in texts {
        if text.contains(&0) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a zero byte in a text"));
        }
        bytes.extend_from_slice(&text);
        bytes.push(0);
    }
    if bytes.len() > MOST_BYTES {
        let why = format!("environment and arguments have more than {MOST_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(bytes)
}

/// Encodes a user as an argument of the helper.
pub(super) fn user_word(identity: &Identity) -> String {
    let (user, name) = identity.user.as_ref().map_or((0, ""), |(user, name)| (*user, name));
    let group = identity.group.unwrap_or(0);
    format!("{user}:{group}:{}:{name}", u8::from(identity.alone))
}

/// Parses an argument from [`user_word`]. Returns `None` if the argument is invalid, or if the user
/// is root.
pub(super) fn parse_user(word: &OsStr) -> Option<Identity> {
    let mut parts = word.to_str()?.splitn(4, ':');
    let user: u32 = parts.next()?.parse().ok()?;
    let group: u32 = parts.next()?.parse().ok()?;
    let alone = parts.next()? == "1";
    let name = parts.next()?.to_owned();
    (user != 0).then(|| Identity {
        user: Some((user, name)),
        group: Some(group),
        alone,
        env: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProcessLimits;

    fn daemon() -> Identity {
        let user = Some((1, "daemon".to_owned()));
        Identity { user, group: Some(1), alone: false, env: Vec::new() }
    }

    fn asked() -> Launch {
        let limits = ProcessLimits { open_files: Some(99), ..ProcessLimits::default() };
        let argv = vec!["sh".into(), "-c".into(), "".into()];
        let mut launch = Launch { limits, files: Some(1024), argv, ..Launch::default() };
        launch.as_user(Some(&daemon()));
        launch
    }

    fn request(launch: &Launch) -> LaunchRequest {
        let env = vec![("A".into(), "b=c".into()), ("EMPTY".into(), "".into())];
        LaunchRequest { dir: "/tmp".into(), env, options: launch.arguments() }
    }

    #[test]
    fn written_values_are_read_back() {
        let launch = request(&asked());
        assert_eq!(Request::parse(&launch.encode().unwrap()), Some(Request::Launch(launch)));
        let limits = CgroupLimits { memory: Some(7), cpu_percent: None, processes: Some(0) };
        let group = GroupRequest { app: "a b".into(), limits };
        assert_eq!(Request::parse(&group.encode().unwrap()), Some(Request::Group(group)));
        let files = vec![("php-fpm.conf".to_owned(), "a\nb".to_owned())];
        let room = RoomRequest { name: "0a".into(), files };
        let program = request(&asked());
        let bytes = room.encode(&program).unwrap();
        assert_eq!(Request::parse(&bytes), Some(Request::Program(room, program)));
        let word = user_word(&daemon());
        assert_eq!(parse_user(OsStr::new(&word)), Some(daemon()));
        assert_eq!(parse_user(OsStr::new("0:0:0:root")), None);
    }

    #[test]
    fn a_message_that_is_cut_or_changed_is_no_other_request() {
        let whole = request(&asked()).encode().unwrap();
        for end in 0..whole.len() {
            let cut = Request::parse(&whole[..end]);
            if let Some(Request::Launch(cut)) = cut {
                // A message that is cut between two arguments may be a launch with fewer arguments.
                let _ = cut.launch(&[daemon()], |_| false, true);
            }
        }
        for text in [
            "",
            "L",
            "L\0",
            "Lrel\x000\0",
            "L/\0x\0",
            "L/\x001\0\0--\0",
            "L/\x001\0novalue\0--\0x\0",
            "G\0",
            "Ga\x001\x002\x003\x004\0",
            "Ga\0-1\0\0\0",
            "X/\0",
            "P\x000\x000\0/\x000\0",
            "P..\x000\x000\0/\x000\0",
            "Pa/b\x000\x000\0/\x000\0",
            "Pa\x002\x000\0/\x000\0",
            "Pa\x000\x0099999\0/\x000\0",
            "Pa\x000\x001\0../x\0text\0/\x000\0",
            "Pa\x000\x001\0..\0text\0/\x000\0",
        ] {
            assert_eq!(Request::parse(text.as_bytes()), None, "{text:?}");
        }
        let zero = LaunchRequest { dir: "/a\0b".into(), ..request(&asked()) };
        assert!(zero.encode().is_err());
    }

    #[test]
    fn only_users_and_groups_of_the_start_are_taken() {
        let users = [daemon()];
        let judge = |launch: &Launch, may_listen| {
            request(launch).launch(&users, |group| group == Path::new("/sys/x"), may_listen)
        };
        let judged = |launch: &Launch| judge(launch, false);
        let (launch, identity) = judged(&asked()).unwrap();
        assert_eq!(identity, &daemon());
        assert!(launch.takes_environment && launch.dir.is_some() && launch.argv == asked().argv);
        let group = Launch { cgroup: Some("/sys/x".into()), ..asked() };
        assert!(judged(&group).is_ok());
        let root = Some((0, "root".to_owned()));
        for refused in [
            Launch { user: root, ..asked() },
            Launch { user: None, ..asked() },
            Launch { user: None, group: None, ..asked() },
            Launch { user: Some((1, "root".into())), ..asked() },
            Launch { group: Some(0), ..asked() },
            Launch { alone: true, ..asked() },
            Launch { cgroup: Some("/sys/y".into()), ..asked() },
            Launch { cgroup: Some("/sys/x".into()), cgroup_is_optional: true, ..asked() },
            Launch { parent: Some(1), ..asked() },
            Launch { cpus: vec![0], ..asked() },
            Launch { inherit: Some("x".into()), ..asked() },
            Launch { stdin: true, ..asked() },
            Launch { dir: Some("/root".into()), ..asked() },
            Launch { takes_environment: true, ..asked() },
        ] {
            assert!(judged(&refused).is_err(), "{refused:?}");
            let is_socket = refused.stdin || refused.inherit.is_some();
            assert_eq!(judge(&refused, true).is_ok(), is_socket, "{refused:?}");
        }
    }
}
