#!/bin/sh
# embed.sh PROGRAM MODEL_MAKER WORK: vectors as a reference in double has them, whatever the order and the batches; pieces of hard lines; one program
# for all lengths; refusals that name the file and what is wrong in it.
program=$1 maker=$2 work=$3
rm -rf "$work" && mkdir -p "$work/model" "$work/prefixed" "$work/tanh" "$work/relu" || exit 1
fail() { echo "wrong: $1"; exit 1; }
cd "$work" || exit 1
"$maker" make model && "$maker" make prefixed bert. && "$maker" make tanh "" gelu_new && "$maker" make relu "" relu || fail "making models"

# Pieces, as BERT's rules have them. A line, then what becomes of it.
cat >table <<'TEXT'
the cat sat on the mat
[CLS] the cat sat on the mat [SEP]
The CAT, sat!
[CLS] the cat , sat ! [SEP]
unaffable
[CLS] un ##aff ##able [SEP]
unaffx
[CLS] [UNK] [SEP]
playing runned plays
[CLS] play ##ing run ##n ##ed play ##s [SEP]
Café ZÜRICH über résumé naïve
[CLS] cafe zurich uber re ##sume naive [SEP]
中文字 cat中dog
[CLS] 中 文 字 cat 中 dog [SEP]
a文b
[CLS] a 文 b [SEP]
dog's $1 -(a)?
[CLS] dog ' [UNK] $ 1 - ( a ) ? [SEP]
ΑΣ Σσ
[CLS] α ##σ σ ##σ [SEP]
한
[CLS] ᄒ ##ᅡ ##ᆫ [SEP]
Й й
[CLS] и и [SEP]
123 “€”
[CLS] 1 ##2 ##3 “ € ” [SEP]
[SEP] [UNK]
[CLS] [ sep ] [ unk ] [SEP]
İ
[CLS] i [SEP]
日 ß ss
[CLS] [UNK] [UNK] ss [SEP]

[CLS] [SEP]
TEXT
printf 'c\314\247at\302\240dog\342\200\250the\303\251\t a\302\255b\342\200\213c\n[CLS] cat dog [UNK] a ##b ##c [SEP]\n' >>table # a loose accent, blanks of Unicode, a soft hyphen
printf 'the\377 \300\200ca\357\277\275t \355\240\200dog\001\n[CLS] the cat dog [SEP]\n' >>table                                # no UTF-8: is not there
printf 'a\000b c\r\n[CLS] a ##b c [SEP]\n' >>table
long=$(printf '%0100d' 0 | tr 0 b)
printf '%s %sb a\n[CLS] b%s [UNK] a [SEP]\n' "$long" "$long" "$(printf '%099d' 0 | sed 's/0/ ##b/g')" >>table
awk 'NR % 2 { print >"lines"; next } { print >"wanted" }' table
"$program" model lines --tokens >got 2>err || { cat err; fail "--tokens"; }
sed '$d' wanted >first
sed '$d' got | diff first - || fail "pieces"
[ "$(tail -n 1 got | wc -w)" = 48 ] && grep -q 'embed: 1 of 21 lines have more than 48 pieces and were cut' err || { cat err; fail "a line that is cut"; }
echo '{"do_lower_case": false, "tokenize_chinese_chars": false}' >model/tokenizer_config.json
[ "$(printf 'The café cat 中文' | "$program" model --tokens)" = "[CLS] [UNK] [UNK] cat [UNK] [SEP]" ] || fail "upper case and accents stay"
echo '{"strip_accents": true, "do_lower_case": false}' >model/tokenizer_config.json
[ "$(printf 'The café cat' | "$program" model --tokens)" = "[CLS] [UNK] cafe cat [SEP]" ] || fail "accents go by themselves"
rm model/tokenizer_config.json

# Vectors.
check() # MODEL POOLING NORMALIZE ACTIVATION ARGUMENTS...
{
    model=$1 pooling=$2 normalize=$3 activation=$4
    shift 4
    "$program" "$model" lines -o v.npy "$@" 2>err || { cat err; fail "$model $*"; }
    "$maker" check got v.npy "$pooling" "$normalize" "$activation" || fail "$model $*"
}
check model mean 0 gelu
cp v.npy plain.npy
check prefixed mean 0 gelu
cmp v.npy plain.npy || fail "names with bert. give other vectors"
check tanh mean 0 gelu_new
check relu mean 0 relu
check model cls 0 gelu --pooling cls
check model max 1 gelu --pooling max --normalize
# What sentence-transformers' files say, and what the options say instead.
mkdir model/1_Pooling
echo '[{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
       {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]' >model/modules.json
echo '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}' >model/1_Pooling/config.json
check model cls 1 gelu
check model mean 0 gelu --pooling mean --no-normalize
echo '{"pooling_mode": "max"}' >model/1_Pooling/config.json
check model max 1 gelu
echo '{"max_seq_length": 4}' >model/sentence_bert_config.json
[ "$(echo 'the cat sat on' | "$program" model --tokens 2>err)" = "[CLS] the cat [SEP]" ] || fail "a limit in the folder"
[ "$(echo 'the cat sat on' | "$program" model --tokens --max-length 5 2>err)" = "[CLS] the cat sat [SEP]" ] || fail "a limit by option"
rm -r model/1_Pooling model/modules.json model/sentence_bert_config.json

# 46 lengths, in any order and batches: the same vectors, few programs, nothing on a stderr that is no terminal.
i=1
while [ $i -le 46 ]; do
    j=0
    while [ $j -lt $i ]; do
        printf 'cat '
        j=$((j + 1))
    done
    echo "dog $((i % 3))"
    i=$((i + 1))
done >many
sort -R --random-source=many many >mixed 2>/dev/null || tac many >mixed
"$program" model many -o a.npy --batch 1 --stats 2>err || { cat err; fail "many lengths"; }
cat err
awk '/programs compiled/ { seen = 1; for (i = 1; i < NF; i++) if ($(i + 1) == "programs" && $i + 0 > 8) exit 1 } END { exit !seen }' err || fail "too many programs"
"$program" model many -o b.npy --batch 7 --stats 2>err && "$maker" same a.npy b.npy || fail "other batches, other vectors"
awk '/programs compiled/ { seen = 1; for (i = 1; i < NF; i++) if ($(i + 1) == "programs" && $i + 0 > 8) exit 1 } END { exit !seen }' err || fail "too many programs"
tac many >turned
"$program" model turned -o c.npy 2>err && "$program" model turned --tokens >turned.tokens 2>/dev/null && "$maker" check turned.tokens c.npy mean 0 gelu || fail "another order"
"$program" model many -o d.npy --bf16 2>err || { cat err; fail "--bf16"; }
cmp -s a.npy d.npy && fail "--bf16 changes nothing"

# Answers.
printf 'the dog\nthe cat\nrun\n' | "$program" model --query 'the cat' >out 2>err || fail "--query"
[ -s err ] && fail "something on stderr that is no terminal: $(cat err)"
[ "$(head -n 1 out)" = "$(printf '1.0000\tthe cat')" ] && sort -rn out | cmp - out && [ "$(wc -l <out)" = 3 ] || { cat out; fail "what is found"; }
printf 'the dog\nthe dog\nrun\n' | "$program" model - --similar >out || fail "--similar"
[ "$(sed -n 1,2p out)" = "$(printf -- '-\tthe dog\n1.0000\tthe dog')" ] || { cat out; fail "what is similar"; }
: | "$program" model -o empty.npy --query a >out && [ ! -s out ] && grep -q "(0, 32)" empty.npy || fail "no lines at all"
printf '\n\n' | "$program" model --similar >out && [ "$(cat out)" = "$(printf -- '-\t\n1.0000\t')" ] || fail "empty lines"
head -c 1000000 /dev/zero | tr '\0' b >long
head -c 1000000 /dev/zero | tr '\0' , >>long
[ "$("$program" model long --tokens 2>/dev/null)" = "[CLS] [UNK]$(printf '%045d' 0 | sed 's/0/ ,/g') [SEP]" ] || fail "a line of two million characters"

refused() # TEXT ARGUMENTS...
{
    text=$1
    shift
    "$program" "$@" >out 2>err </dev/null
    status=$?
    [ $status = 1 ] || [ $status = 2 ] || { cat err; fail "$* ends with status $status"; }
    grep -q -- "$text" err || { cat err; fail "$* is not refused with \"$text\""; }
}
refused '^embed: name the folder of a model'
refused '^embed: say what is wanted' model
refused 'there is no such option' model --words
refused 'mean, cls or max' model --tokens --pooling min
refused 'say one' model --tokens --normalize --no-normalize
refused 'the model has 48 positions' model --tokens --max-length 49
refused '"1" is no whole number from 2' model --tokens --max-length 1
refused 'one is read' model lines many --tokens
refused 'none: No such file' model none --tokens
refused 'none/config.json: No such file' none --tokens
refused 'No such file' model -o none/v.npy
fresh() { rm -rf bad && cp -r model bad; }
for file in config.json vocab.txt model.safetensors; do
    fresh && rm "bad/$file"
    refused "bad/$file" bad lines --similar
    [ $file = model.safetensors ] || refused 'with config.json, model.safetensors and vocab.txt' bad lines --similar
done
fresh && head -c 20000 model/model.safetensors >bad/model.safetensors
refused 'bad/model.safetensors' bad lines --similar
fresh && sed 's/"intermediate_size": 48/"intermediate_size": 40/' model/config.json >bad/config.json
refused 'encoder.layer.0.intermediate.dense.weight is f32\[48,32\]; config.json asks for floats \[40,32\]' bad lines --similar
fresh && sed 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' model/config.json >bad/config.json
refused 'it has no tensor encoder.layer.2.attention.self.query.weight' bad lines --similar
fresh && grep -v '^\[UNK\]$' model/vocab.txt >bad/vocab.txt
refused 'bad/vocab.txt: no line of it is \[UNK\]' bad --tokens
fresh && echo more >>bad/vocab.txt
refused 'config.json says 64' bad --tokens
fresh && : >bad/vocab.txt
refused 'bad/vocab.txt: no line of it is \[UNK\]' bad --tokens
config() # TEXT SED
{
    fresh && sed "$2" model/config.json >bad/config.json
    cmp -s model/config.json bad/config.json && fail "$2 changes nothing"
    refused "bad/config.json: $1" bad --tokens
}
config '"hidden_size" is -32; a whole number from 1' 's/"hidden_size": 32/"hidden_size": -32/'
config '"hidden_size" is 1000000000; a whole number' 's/"hidden_size": 32/"hidden_size": 1000000000/'
config 'line 1' 's/"hidden_size": 32/"hidden_size": 99999999999999999999/'
config '"hidden_size" is a text; a whole number' 's/"hidden_size": 32/"hidden_size": "32"/'
config '"hidden_size" is a fraction' 's/"hidden_size": 32/"hidden_size": 32.5/'
config '"hidden_size", 30, is no multiple of "num_attention_heads", 4' 's/"hidden_size": 32/"hidden_size": 30/'
config '"hidden_size" is missing' 's/"hidden_size": 32, //'
config '"hidden_act" is "swish", which this program does not know; it knows gelu, gelu_new, relu' 's/"gelu"/"swish"/'
config '"hidden_act" is null' 's/"gelu"/null/'
config '"model_type" is "t5"' 's/"bert"/"t5"/'
config '"layer_norm_eps" is -1' 's/1e-12/-1/'
config '"max_position_embeddings" is 1;' 's/"max_position_embeddings": 48/"max_position_embeddings": 1/'
config 'line 1' 's/{/[/'
config 'an object is needed, it has a list' 's/{/[{/; s/}/}]/'
other() # FILE TEXT JSON
{
    fresh && mkdir -p bad/1_Pooling && echo "$3" >"bad/$1"
    [ "$1" != 1_Pooling/config.json ] || echo '[{"path": "1_Pooling", "type": "Pooling"}]' >bad/modules.json
    refused "bad/$1: $2" bad --tokens
}
other tokenizer_config.json '"do_lower_case" is a number; true or false' '{"do_lower_case": 1}'
other sentence_bert_config.json '"max_seq_length" is 0' '{"max_seq_length": 0}'
other modules.json '"type" is "x.Dense", which' '[{"path": "", "type": "x.Dense"}]'
other modules.json '"path" of the Pooling, "../model", is no folder' '[{"path": "../model", "type": "Pooling"}]'
other 1_Pooling/config.json 'no kind of pooling is set' '{}'
other 1_Pooling/config.json '"pooling_mode_lasttoken" is set' '{"pooling_mode_lasttoken": true}'
other 1_Pooling/config.json 'two kinds of pooling' '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}'
"$program" --help | grep -q -- '--pooling' || fail "no help"
exit 0
