"""A reply with JSON, with Flask."""
from flask import Flask, jsonify, request

wsgi = Flask(__name__)


@wsgi.get('/json')
def reply():
    name = request.args.get('name', 'World')
    return jsonify(message='Hello, %s' % name, numbers=list(range(10)))
