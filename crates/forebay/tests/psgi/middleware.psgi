# Plack's middleware and applications around small ones, each at a path of its own.
use strict;
use warnings;
use Plack::App::Cascade;
use Plack::App::Directory;
use Plack::App::File;
use Plack::Builder;
use Plack::Request;

package Forbidden {
    sub code { $_[0]{code} }
    sub as_string { 'not for you' }
}

my $where = $ENV{WHERE};
my $hello = sub { [200, ['Content-Type', 'text/plain'], ['hello ', 'world']] };

builder {
    enable 'Lint';
    enable 'AccessLog', format => 'logged %m %U%q %H %>s %b';
    mount '/file' => Plack::App::File->new(root => "$where/files")->to_app;
    mount '/directory' => Plack::App::Directory->new(root => "$where/files")->to_app;
    mount '/static' => builder {
        enable 'Static', path => qr{^/s/}, root => "$where/files";
        $hello;
    };
    mount '/session' => builder {
        enable 'Session';
        sub {
            my ($env) = @_;
            my $count = ++$env->{'psgix.session'}{count};
            return [200, ['Content-Type', 'text/plain'], [$count]];
        };
    };
    mount '/deflater' => builder {
        enable 'Deflater', content_type => ['text/plain'];
        sub { [200, ['Content-Type', 'text/plain'], ['a' x 5000]] };
    };
    mount '/length' => builder { enable 'ContentLength'; $hello };
    mount '/md5' => builder { enable 'ContentMD5'; $hello };
    mount '/chunked' => builder { enable 'Chunked'; $hello };
    mount '/buffered' => builder {
        enable 'BufferedStreaming';
        sub { sub { my $w = $_[0]->([200, ['Content-Type', 'text/plain']]); $w->write($_) for 1 .. 3; $w->close } };
    };
    mount '/head' => builder { enable 'Head'; $hello };
    mount '/runtime' => builder { enable 'Runtime'; $hello };
    mount '/conditional' => builder {
        enable 'ConditionalGET';
        sub { [200, ['Content-Type', 'text/plain', 'ETag', '"x"'], ['fresh']] };
    };
    mount '/basic' => builder {
        enable 'Auth::Basic', authenticator => sub { $_[0] eq 'user' && $_[1] eq 'secret' };
        sub { [200, ['Content-Type', 'text/plain'], [$_[0]{REMOTE_USER}]] };
    };
    mount '/error' => builder {
        enable 'ErrorDocument', 404 => "$where/files/missing.txt";
        sub { [404, ['Content-Type', 'text/plain'], ['no']] };
    };
    mount '/exception' => builder {
        enable 'HTTPExceptions';
        sub { die bless { code => 403 }, 'Forbidden' };
    };
    mount '/trace' => builder { enable 'StackTrace'; sub { die 'traced' } };
    mount '/jsonp' => builder {
        enable 'JSONP';
        sub { [200, ['Content-Type', 'application/json'], ['{"a":1}']] };
    };
    mount '/cascade' => Plack::App::Cascade->new(
        apps => [sub { [404, [], []] }, $hello],
    )->to_app;
    mount '/upload' => sub {
        my $request = Plack::Request->new($_[0]);
        my $upload = $request->upload('file');
        open my $handle, '<', $upload->path or die $!;
        my $content = do { local $/; <$handle> };
        my $text = join '|', $request->param('name'), $upload->filename, $upload->size, $content;
        return [200, ['Content-Type', 'text/plain'], [$text]];
    };
};
