#!/usr/bin/perl
# A report on the gauges of a river, as a web page: an ordinary CGI script with nothing but core Perl.
#
#   /report.pl?gauge=Alder+Weir&from=2024-03-10&to=2024-04-20
#
# All three parameters are optional. The readings are in gauges.csv, in the directory of this script.

use strict;
use warnings;
use List::Util qw(max min sum);

print page($ENV{QUERY_STRING} || '');

# The whole reply: headers, an empty line and the body.
sub page {
    my ($query) = @_;
    my %want = parse_query($query);
    for my $name (grep { length($want{$_} || '') } qw(from to)) {
        next if $want{$name} =~ /\A\d{4}-\d\d-\d\d\z/;
        return reply('400 Bad Request', 'Bad date',
            '<p>' . escape("$name=$want{$name} is not a date such as 2024-03-31.") . "</p>\n");
    }
    my ($chosen, $gauges) = read_readings(data_file(), \%want)
        or return reply('500 Internal Server Error', 'No data', "<p>No data.</p>\n");

    my $body = form($gauges, \%want);
    $body .= @$chosen ? summary($chosen) . weeks($chosen) . highest($chosen)
                      : "<p>No readings match.</p>\n";
    return reply('200 OK', 'River report', $body);
}

# Returns "a=1&b=two+words" as a hash. If a name occurs twice, the first value counts.
sub parse_query {
    my ($query) = @_;
    my %value;
    for my $pair (split /[&;]/, $query) {
        my ($name, $text) = map { decode($_) } split(/=/, $pair, 2), '';
        $value{$name} = $text if defined $name && !exists $value{$name};
    }
    return %value;
}

sub decode {
    my ($text) = @_;
    $text =~ tr/+/ /;
    $text =~ s/%([0-9A-Fa-f]{2})/chr hex $1/ge;
    return $text;
}

# SCRIPT_FILENAME is set by the server; $0 is the path if a shell runs the script.
sub data_file {
    my $folder = $ENV{SCRIPT_FILENAME} || $0;
    $folder =~ s{[^/]*\z}{};
    return "${folder}gauges.csv";
}

# Returns the selected readings, as { date, gauge, level, flow, rain }, and the names of all gauges
# in the order of the file. Returns an empty list if the file cannot be read.
sub read_readings {
    my ($file, $want) = @_;
    my $csv;
    if (!open $csv, '<', $file) {
        warn "report.pl: $file: $!\n";
        return;
    }
    my ($gauge, $from, $to) = map { defined $_ ? $_ : '' } @{$want}{qw(gauge from to)};
    my (@chosen, @gauges, %seen);
    my $titles = <$csv>;
    while (my $line = <$csv>) {
        chomp $line;
        my ($date, $name, $level, $flow, $rain) = split /,/, $line;
        push @gauges, $name if !$seen{$name}++;
        next if $gauge ne '' && $name ne $gauge;
        # Dates written year first sort as text.
        next if $from ne '' && $date lt $from || $to ne '' && $date gt $to;
        push @chosen,
            { date => $date, gauge => $name, level => $level, flow => $flow, rain => $rain };
    }
    close $csv;
    return (\@chosen, \@gauges);
}

sub form {
    my ($gauges, $want) = @_;
    my $options = option('', 'all', $want);
    $options .= option($_, $_, $want) for @$gauges;
    my ($from, $to) = map { escape(defined $want->{$_} ? $want->{$_} : '') } qw(from to);
    return <<"END";
<form action="report.pl">
<label>Gauge <select name="gauge">$options</select></label>
<label>from <input type="date" name="from" value="$from"></label>
<label>to <input type="date" name="to" value="$to"></label>
<button>Show</button>
</form>
END
}

sub option {
    my ($value, $label, $want) = @_;
    my $selected = $value eq ($want->{gauge} || '') ? ' selected' : '';
    return sprintf '<option value="%s"%s>%s</option>', escape($value), $selected, escape($label);
}

sub summary {
    my ($chosen) = @_;
    my %of;
    push @{ $of{ $_->{gauge} } }, $_ for @$chosen;
    my @rows;
    for my $gauge (sort keys %of) {
        my @levels = sort { $a <=> $b } map { $_->{level} } @{ $of{$gauge} };
        my @flows = map { $_->{flow} } @{ $of{$gauge} };
        push @rows, [
            $gauge, scalar @levels, $levels[0], median(@levels), $levels[-1],
            sprintf('%.2f', sum(@flows) / @flows), sprintf('%.2f', max(@flows)),
        ];
    }
    return sprintf("<p>%d readings.</p>\n", scalar @$chosen) . table(
        'By gauge',
        ['Gauge', 'Days', 'Lowest, cm', 'Median, cm', 'Highest, cm', 'Mean flow, m³/s', 'Peak'],
        @rows,
    );
}

sub median {
    my @sorted = @_;
    my $middle = int(@sorted / 2);
    return @sorted % 2 ? $sorted[$middle] : ($sorted[$middle - 1] + $sorted[$middle]) / 2;
}

# Each row has seven days, counted from the first selected day, and a bar as long as the mean flow.
sub weeks {
    my ($chosen) = @_;
    my (%number, @weeks);
    for my $reading (@$chosen) {
        my $day = $number{ $reading->{date} };
        $day = $number{ $reading->{date} } = keys %number if !defined $day;
        push @{ $weeks[int($day / 7)] }, $reading;
    }
    my @means = map { my $week = $_; sum(map { $_->{flow} } @$week) / @$week } @weeks;
    my $most = max(@means);
    my @rows;
    for my $i (0 .. $#weeks) {
        my $week = $weeks[$i];
        push @rows, [
            $week->[0]{date}, $week->[-1]{date},
            sprintf('%.1f', sum(map { $_->{rain} } @$week) / @$week),
            min(map { $_->{level} } @$week), max(map { $_->{level} } @$week),
            sprintf('%.2f', $means[$i]), '#' x (20 * $means[$i] / $most),
        ];
    }
    return table('By week',
        ['From', 'To', 'Rain a day, mm', 'Lowest, cm', 'Highest, cm', 'Mean flow, m³/s', ''], @rows);
}

sub highest {
    my ($chosen) = @_;
    my @sorted = sort { $b->{flow} <=> $a->{flow} || $a->{date} cmp $b->{date} } @$chosen;
    my @rows = map { [ @{$_}{qw(date gauge level flow rain)} ] } @sorted[0 .. min(9, $#sorted)];
    return table('Highest flows', ['Date', 'Gauge', 'Level, cm', 'Flow, m³/s', 'Rain, mm'], @rows);
}

sub table {
    my ($caption, $titles, @rows) = @_;
    my $html = "<table>\n<caption>" . escape($caption) . "</caption>\n";
    $html .= '<tr>' . join('', map { '<th>' . escape($_) . '</th>' } @$titles) . "</tr>\n";
    for my $row (@rows) {
        $html .= '<tr>' . join('', map { '<td>' . escape($_) . '</td>' } @$row) . "</tr>\n";
    }
    return "$html</table>\n";
}

sub reply {
    my ($status, $title, $body) = @_;
    return <<"END";
Status: $status
Content-Type: text/html; charset=utf-8

<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>$title</title>
<style>
body { font: 16px/1.4 sans-serif; margin: 2em auto; max-width: 60em }
table { border-collapse: collapse; margin: 1em 0 }
caption { font-weight: bold; text-align: left }
th, td { border: 1px solid #ccc; padding: .2em .6em; text-align: left }
</style>
</head>
<body>
<h1>$title</h1>
$body</body>
</html>
END
}

sub escape {
    my ($text) = @_;
    my %entity = ('&' => '&amp;', '<' => '&lt;', '>' => '&gt;', '"' => '&quot;');
    $text =~ s/([&<>"])/$entity{$1}/g;
    return $text;
}
