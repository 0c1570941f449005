#!/usr/bin/python3
"""A page with the readings of a gauge: an ordinary CGI script, with nothing but Python's own library.

    /report.py?gauge=Alder+Weir&from=2024-03-10&to=2024-04-20

The readings are those of ../cgi-or-persistent, which has the same page in Perl."""
import cgi
import cgitb
import csv
import html
import os
import statistics
import sys

cgitb.enable(display=0)
sys.stdout.reconfigure(encoding='utf-8')

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../cgi-or-persistent/gauges.csv')


def main():
    form = cgi.FieldStorage()
    gauge, first, last = (form.getfirst(name, '') for name in ('gauge', 'from', 'to'))
    with open(DATA, newline='') as file:
        rows = [row for row in csv.DictReader(file)
                if row['gauge'] == (gauge or row['gauge'])
                and (first or row['date']) <= row['date'] <= (last or row['date'])]
    print('Content-Type: text/html; charset=utf-8\n')
    print('<!DOCTYPE html>\n<title>River report</title>\n<h1>River report</h1>')
    if not rows:
        print('<p>No readings match.</p>')
        return
    table(['Gauge', 'Days', 'Lowest, cm', 'Median, cm', 'Highest, cm'], summary(rows))
    table(['Date', 'Gauge', 'Level, cm', 'Flow, m³/s', 'Rain, mm'],
          [list(row.values()) for row in
           sorted(rows, key=lambda row: -float(row['flow_m3s']))[:10]])


def summary(rows):
    levels = {}
    for row in rows:
        levels.setdefault(row['gauge'], []).append(int(row['level_cm']))
    for gauge, values in sorted(levels.items()):
        yield gauge, len(values), min(values), statistics.median(values), max(values)


def table(titles, rows):
    print('<table>\n<tr>%s</tr>' % ''.join('<th>%s</th>' % title for title in titles))
    for row in rows:
        print('<tr>%s</tr>' % ''.join('<td>%s</td>' % html.escape(str(value)) for value in row))
    print('</table>')


if __name__ == '__main__':
    main()
