#!/usr/bin/perl
# timing.pl FILE CONTENT-TYPE SECONDS: prints a line for each installed reader of Perl: its name, a
# tab, and the seconds of processor time that it takes to read the form in FILE once.
use strict;
use warnings;
use Time::HiRes qw(clock_gettime CLOCK_PROCESS_CPUTIME_ID);

my ($file, $type, $turn) = @ARGV;
open my $handle, '<:raw', $file or die "$file: $!\n";
my $form = do { local $/; <$handle> };

if ($type =~ /urlencoded/) {
    for my $name ('WWW::Form::UrlEncoded::XS', 'WWW::Form::UrlEncoded::PP') {
        eval "require $name" or next;
        my $read = $name->can('parse_urlencoded');
        timed($name, sub { my @pairs = $read->($form); scalar @pairs });
    }
}
if (eval { require HTTP::Entity::Parser }) {
    my $parser = HTTP::Entity::Parser->new;
    $parser->register('application/x-www-form-urlencoded', 'HTTP::Entity::Parser::UrlEncoded');
    $parser->register('multipart/form-data', 'HTTP::Entity::Parser::MultiPart');
    timed('HTTP::Entity::Parser', sub {
        open my $input, '<', \$form or die $!;
        my %env = (
            CONTENT_TYPE => $type, CONTENT_LENGTH => length $form,
            'psgi.input' => $input, 'psgix.input.buffered' => 1,
        );
        my ($params, $uploads) = $parser->parse(\%env);
        @$params or die "nothing read";
    });
}

sub timed {
    my ($name, $read) = @_;
    my ($calls, $spent) = (0, 0);
    my $start = clock_gettime(CLOCK_PROCESS_CPUTIME_ID);
    while ($spent < $turn) {
        for (0 .. $calls / 10) { $read->(); $calls++ }
        $spent = clock_gettime(CLOCK_PROCESS_CPUTIME_ID) - $start;
    }
    printf "%s\t%.12f\n", $name, $spent / $calls;
}
