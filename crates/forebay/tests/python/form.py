#!/usr/bin/python3
import cgi
import hashlib
form = cgi.FieldStorage()
print('Content-Type: text/plain\n')
for name in sorted(form):
    for item in form[name] if isinstance(form[name], list) else [form[name]]:
        value = item.value if isinstance(item.value, bytes) else item.value.encode()
        print(name, item.filename, len(value), hashlib.md5(value).hexdigest())
print(form.getvalue('q'), form.getfirst('a'), form.getlist('a'), 'absent' in form)
