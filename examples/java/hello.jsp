<%@ page session="false" contentType="text/plain" %>Hello over AJP
