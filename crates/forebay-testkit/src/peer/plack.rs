//! Servers for PSGI applications: <https://plackperl.org>.

use std::path::Path;
use std::process::Command;

use super::{Peer, has_perl, on_free_port};
use crate::process::Process;

/// Returns true if Perl can load these modules, each given with its Debian package. Otherwise,
/// reports the test as skipped.
pub fn perl_has(modules: &[(&str, &str)]) -> bool {
    modules.iter().all(|(module, package)| has_perl(module, package))
}

/// Perl program that runs Starlet with two processes behind a proxy, as Starlet's documentation
/// recommends. The client's address, the host and the port come from fields that the proxy sets.
const STARLET: &str = r#"
    my ($app, $port, $pid) = @ARGV;
    my $ready = sub { open my $file, '>', $pid or die; print $file $$ };
    Plack::Handler::Starlet->new(host => '127.0.0.1', port => $port, max_workers => 2,
        max_keepalive_reqs => 100, server_ready => $ready)
        ->run(Plack::Middleware::ReverseProxy->wrap(Plack::Util::load_psgi($app)));
"#;

/// Perl program that runs Plack's FastCGI handler in four processes, which share a listening socket
/// as their standard input.
const FASTCGI: &str = r#"
    my ($app, $port, $pid) = @ARGV;
    my $socket = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 100,
        ReuseAddr => 1) or die "cannot listen: $@";
    open STDIN, '<&=' . fileno $socket or die;
    $app = Plack::Util::load_psgi($app);
    fork or last for 1 .. 3;
    open my $file, '>>', $pid or die; print $file $$; close $file;
    Plack::Handler::FCGI->new(keep_stderr => 1)->run($app);
"#;

/// Perl program with a small SCGI server, because Plack has none. Each connection carries one
/// request. Four processes share a listening socket. Plack's CGI handler writes the output.
const SCGI: &str = r#"
    my ($app, $port, $pid) = @ARGV;
    my $socket = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 100,
        ReuseAddr => 1) or die "cannot listen: $@";
    $app = Plack::Util::load_psgi($app);
    fork or last for 1 .. 3;
    open my $file, '>>', $pid or die; print $file $$; close $file;

    while (my $client = $socket->accept) {
        my $size = do { local $/ = ':'; <$client> } // '';
        $size =~ /\A([0-9]+):\z/ or next;
        read $client, my $block, $1 + 1;
        $block =~ s/,\z// or next;
        local %ENV = split /\0/, $block, -1;
        my $body = '';
        read $client, $body, $ENV{CONTENT_LENGTH};
        # Plack::Handler::CGI takes an empty length for one.
        delete $ENV{CONTENT_LENGTH} if !$ENV{CONTENT_LENGTH};
        open my $input, '<', \$body or die $!;
        local *STDOUT = $client;
        local *STDIN = $input;
        eval { Plack::Handler::CGI->new->run(sub { Plack::Util::run_app($app, $_[0]) }); 1 } or warn $@;
        $client->flush;
        shutdown $client, 2;
    }
"#;

/// Starts Starlet with the application in the file `app`. If Starlet is missing, reports the test
/// as skipped and returns `None`.
pub fn starlet(app: &Path) -> Option<Peer> {
    let modules = [
        ("Plack::Handler::Starlet", "starlet"),
        ("Plack::Middleware::ReverseProxy", "libplack-middleware-reverseproxy-perl"),
    ];
    perl_has(&modules).then(|| start(STARLET, &modules, app))
}

/// Starts Starman with the application in the file `app`. If Starman is missing, reports the test
/// as skipped and returns `None`.
pub fn starman(app: &Path) -> Option<Peer> {
    const STARMAN: &str = r#"
        my ($app, $port, $pid) = @ARGV;
        my $socket = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 100,
            ReuseAddr => 1) or die "cannot listen: $@";
        close $socket;
        open my $file, '>', $pid or die; print $file $$; close $file;
        Starman::Server->new->run(Plack::Util::load_psgi($app),
            { listen => ["127.0.0.1:$port"], workers => 2, keepalive => 1, keepalive_timeout => 5 });
    "#;
    let modules = [("Starman::Server", "starman"), ("IO::Socket::INET", "perl")];
    let mut peer = perl_has(&modules).then(|| start(STARMAN, &modules, app))?;
    let address = peer.address().clone();
    peer.process().wait_until_listening(address);
    Some(peer)
}

/// Starts Plack's FastCGI handler with the application in the file `app`. If the handler is
/// missing, reports the test as skipped and returns `None`.
pub fn plack_fastcgi(app: &Path) -> Option<Peer> {
    let modules = [("Plack::Handler::FCGI", "libplack-perl"), ("FCGI", "libfcgi-perl")];
    perl_has(&modules).then(|| start(FASTCGI, &[modules[0], ("IO::Socket::INET", "perl")], app))
}

/// Starts a small SCGI server with the application in the file `app`. If Plack is missing, reports
/// the test as skipped and returns `None`.
pub fn plack_scgi(app: &Path) -> Option<Peer> {
    let plack = ("Plack::Handler::CGI", "libplack-perl");
    perl_has(&[plack]).then(|| start(SCGI, &[plack, ("IO::Socket::INET", "perl")], app))
}

fn start(program: &str, modules: &[(&str, &str)], app: &Path) -> Peer {
    on_free_port(|folder, port| {
        let mut command = Command::new("perl");
        command.args(modules.iter().map(|(module, _)| format!("-M{module}")));
        command.args(["-MPlack::Util", "-e", program]).arg(app).arg(port.to_string());
        command.arg(folder.path().join("pid"));
        Process::start(command)
    })
}
