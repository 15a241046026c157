use super::find;

#[test]
fn the_program_is_the_last_python_block_or_else_the_last_unmarked_block_or_the_response() {
    let cases = [
        ("print(1)", "print(1)"),
        ("", ""),
        ("Here:\n```python\na\n```\nor\n```python\nb\n```\nthat is all", "b\n"),
        ("```py\na\n```\n```\nits output\n```", "a\n"),
        ("```Python3\na\n```", "a\n"),
        ("```\na\n```\n```\nb\n```", "b\n"),
        ("```json\n{}\n```\n```\nb\n```\n```text\n7\n```", "b\n"),
        ("```json\n{}\n```", "```json\n{}\n```"),
        ("  ```python\r\na\r\n  ```\r\n", "a\r\n"),
        ("```python\nnever closed\n", "never closed\n"),
        ("```python", ""),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
        ("```python\ns = \"```\"\n```", "s = \"```\"\n"),
        ("say ```python``` and ``` x ``` so", "say ```python``` and ``` x ``` so"),
        ("```python\nprint('\u{1f980}')\n```", "print('\u{1f980}')\n"),
    ];
    for (response, program) in cases {
        assert_eq!(find(response), program, "{response:?}");
    }
}
